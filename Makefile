# make demo            set up the environment, train a detector on embedded data, report on it
# make demo-check      run the demo in a new folder, and check its AP and its pictures
# make pretrain-demo   the demo with a backbone that is pretrained on an embedded data set
# make test            set up the environment, run the tests
# make env             set up the environment
# make lint            check the style
#
# STACK=onedl          use OneDL's packages in .venv-onedl, not OpenMMLab's in .venv
# VENV=FOLDER          use another folder for the environment
# PYTHON3=python3.12   use another Python

PYTHON3 ?= python3
SETUP = $(PYTHON3) tools/setup_env.py $(if $(STACK),--stack $(STACK)) $(if $(VENV),--venv $(VENV))
DEMO = configs/shapes/faster_rcnn_rla_r18_fpn.py
RUN = work_dirs/demo
CHECKED = work_dirs/demo-check
CLASSIFIER = configs/shapes/classifier_rla_r18.py
PRETRAIN = work_dirs/pretrain-demo
# Your own environment does not need mmrla to be installed.
export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))

.PHONY: demo demo-check pretrain-demo test env lint

# With --resume, a second call continues an interrupted run. After a finished run it
# only evaluates and draws again.
demo: env
	python=$$($(SETUP) --which) && set -x && \
	"$$python" tools/make_shapes.py data/shapes && \
	"$$python" tools/train.py $(DEMO) --work-dir $(RUN) --resume && \
	"$$python" tools/test.py $(DEMO) "$$(cat $(RUN)/last_checkpoint)" \
	    --work-dir $(RUN)/test --show-dir detections && \
	"$$python" tools/summarize_run.py $(RUN) && \
	"$$python" tools/report.py $(RUN) -o $(RUN)/report.html

# A new folder, so that the run of an earlier version is not resumed.
demo-check:
	rm -rf $(CHECKED)
	$(MAKE) demo RUN=$(CHECKED)
	"$$($(SETUP) --which)" tools/dev/check_demo.py $(CHECKED)

pretrain-demo: env
	python=$$($(SETUP) --which) && set -x && \
	"$$python" tools/make_shapes.py data/shapes && \
	"$$python" tools/make_shapes.py data/shape_classes --classification && \
	"$$python" tools/train.py $(CLASSIFIER) --work-dir $(PRETRAIN)/classifier --resume && \
	"$$python" tools/train.py $(DEMO) --work-dir $(PRETRAIN)/detector --resume \
	    --pretrained "$$(cat $(PRETRAIN)/classifier/last_checkpoint)" && \
	"$$python" tools/summarize_run.py $(PRETRAIN)/detector

# Two processes with one thread each: more threads than cores would slow down both.
test:
	$(SETUP) --development
	OMP_NUM_THREADS=1 "$$($(SETUP) --development --which)" -m pytest -n 2

env:
	$(SETUP)

lint:
	$(SETUP) --development
	"$$($(SETUP) --development --which)" -m ruff check .
