# make demo   set everything up, train a detector on embedded data, draw what it finds
# make pretrain-demo   the same with a backbone pretrained on an embedded classification set
# make test   set everything up, run the tests
# make env    set everything up
# make lint   check the style

PYTHON3 ?= python3
SETUP = $(PYTHON3) tools/setup_env.py
DEMO = configs/shapes/faster_rcnn_rla_r18_fpn.py
RUN = work_dirs/demo
CLASSIFIER = configs/shapes/classifier_rla_r18.py
PRETRAIN = work_dirs/pretrain-demo
# An environment of your own need not have mmrla installed.
export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))

.PHONY: demo pretrain-demo test env lint

# --resume: called again after an interruption, it goes on; after the end, it
# only evaluates and draws again.
demo: env
	python=$$($(SETUP) --which) && set -x && \
	"$$python" tools/make_shapes.py data/shapes && \
	"$$python" tools/train.py $(DEMO) --work-dir $(RUN) --resume && \
	"$$python" tools/test.py $(DEMO) "$$(cat $(RUN)/last_checkpoint)" \
	    --work-dir $(RUN)/test --show-dir detections && \
	"$$python" tools/summarize_run.py $(RUN)

pretrain-demo: env
	python=$$($(SETUP) --which) && set -x && \
	"$$python" tools/make_shapes.py data/shapes && \
	"$$python" tools/make_shapes.py data/shape_classes --classification && \
	"$$python" tools/train.py $(CLASSIFIER) --work-dir $(PRETRAIN)/classifier --resume && \
	"$$python" tools/train.py $(DEMO) --work-dir $(PRETRAIN)/detector --resume \
	    --pretrained "$$(cat $(PRETRAIN)/classifier/last_checkpoint)" && \
	"$$python" tools/summarize_run.py $(PRETRAIN)/detector

# Two processes of one thread each: more threads than cores slow both down.
test:
	$(SETUP) --development
	OMP_NUM_THREADS=1 "$$($(SETUP) --development --which)" -m pytest -n 2

env:
	$(SETUP)

lint:
	$(SETUP) --development
	"$$($(SETUP) --development --which)" -m ruff check .
