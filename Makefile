# make demo   set everything up, train a detector on embedded data, draw what it finds
# make test   set everything up, run the tests
# make env    set everything up
# make lint   check the style

PYTHON = "$$(python3 tools/setup_env.py --which)"
DEMO = configs/shapes/faster_rcnn_rla_r18_fpn.py
RUN = work_dirs/demo

.PHONY: demo test env lint

# --resume: called again after an interruption, it goes on; after the end, it
# only evaluates and draws again.
demo: env
	$(PYTHON) tools/make_shapes.py data/shapes
	$(PYTHON) tools/train.py $(DEMO) --work-dir $(RUN) --resume
	$(PYTHON) tools/test.py $(DEMO) "$$(cat $(RUN)/last_checkpoint)" --work-dir $(RUN)/test --show-dir detections
	$(PYTHON) tools/summarize_run.py $(RUN)

# Two processes of one thread each: more threads than cores slow both down.
test: env
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest -n 2

env:
	python3 tools/setup_env.py

lint: env
	$(PYTHON) -m ruff check .
