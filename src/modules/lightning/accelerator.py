"""An accelerator for trainings that share their GPUs with a vLLM engine."""

from typing import Any

from lightning.pytorch.accelerators import CUDAAccelerator


class SharedCUDAAccelerator(CUDAAccelerator):
    """CUDA accelerator that does not clear GPU memory when a fit or test begins or ends.

    Lightning's accelerator does so, which frees the workspaces of cuBLAS. The CUDA graphs of a vLLM engine in
    the same process were captured with these workspaces, and their next replay would write into freed memory
    (pytorch issues 192061 and 193402). The engine lives from the fit to the test that follows.
    """

    def setup(self, trainer: Any) -> None:
        """Set the flags of NVIDIA's libraries."""
        self.set_nvidia_flags(trainer.local_rank)

    def teardown(self) -> None:
        """Do nothing: the engine may still need its workspaces."""
