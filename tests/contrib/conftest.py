"""Hand-made pools and mini-batches, as the core's strategies have them."""

from tests.modules.advantages.conftest import pools
from tests.modules.credit.conftest import make_inputs

__all__ = ["make_inputs", "pools"]
