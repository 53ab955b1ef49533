# mmpretrain's runtime, with mmrla's modules registered.
_base_ = 'mmpretrain::_base_/default_runtime.py'

custom_imports = dict(imports=['mmrla'], allow_failed_imports=False)
custom_hooks = [dict(type='CheckLabelsHook')]
