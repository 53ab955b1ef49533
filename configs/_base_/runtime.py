# mmdet's runtime, with mmrla's modules registered.
_base_ = 'mmdet::_base_/default_runtime.py'

custom_imports = dict(imports=['mmrla'], allow_failed_imports=False)
# Safe against interruptions and bad files: see docs/reliability.md.
runner_type = 'RLARunner'
default_hooks = dict(
    checkpoint=dict(type='SafeCheckpointHook'), finite_loss=dict(type='FiniteLossHook'))
