# The commands: 'make demo', 'make test' and 'make docs'. They create what they need under build/, and
# can be run again.

PYTHON ?= python3
BUILD := build
DEMO := $(BUILD)/demo
VENV := $(BUILD)/venv
BIN := $(CURDIR)/$(VENV)/bin

.PHONY: demo test reference docs clean

# The generator, with copier.
$(VENV)/generator: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	touch $@

# What the tests need beside it.
$(VENV)/ready: $(VENV)/generator
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[test]'
	touch $@

# Renders a backend, builds it against the stock TVM wheel in an environment of its own, and runs a
# trained classifier and a trained decoder on it.
demo: $(VENV)/generator
	rm -rf $(DEMO)
	$(BIN)/copier copy --quiet --defaults --vcs-ref HEAD -d backend_name=acme_npu . $(DEMO)/tvm-acme-npu
	$(PYTHON) -m venv $(DEMO)/venv
	@echo "Compiling the backend takes about a minute of two cores."
	$(DEMO)/venv/bin/pip install --quiet --disable-pip-version-check '$(DEMO)/tvm-acme-npu[quantize-onnx]'
	$(DEMO)/venv/bin/python -m tvm_acme_npu check
	$(DEMO)/venv/bin/python docs/demo/run.py acme_npu --page $(DEMO)/digits.html
	$(DEMO)/venv/bin/python docs/demo/run_decoder.py acme_npu

test: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder --durations 20

# Renders reference_backend/ again, after a change to the template.
reference: $(VENV)/ready
	$(BIN)/npu-scaffold reference --write

# Builds the site of the documentation in build/site, which needs no network and no server.
docs: $(VENV)/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "Open build/site/index.html."

clean:
	rm -rf $(BUILD)
