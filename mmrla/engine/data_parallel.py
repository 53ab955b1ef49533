"""Data-parallel training whose sums a resumed run repeats to the bit."""
from typing import List, Optional, Sequence, Tuple

from mmengine.model import MMDistributedDataParallel
from mmengine.registry import MODEL_WRAPPERS
from torch import nn


@MODEL_WRAPPERS.register_module()
class RepeatableDataParallel(MMDistributedDataParallel):
    """mmengine's ``MMDistributedDataParallel``, which can continue with its own buckets.

    DDP adds gradients bucket by bucket. With more than two processes the place of a
    gradient in its bucket decides how its sum is rounded. The first step uses a single
    bucket. All later steps use buckets in the order in which the gradients of the
    first step became ready. This class records that order, and a resumed run uses it from
    its first step on. Nothing is done in later steps.

    With ``find_unused_parameters`` DDP keeps its first buckets, and nothing is recorded.
    ``static_graph`` is left to DDP.

    Args:
        module: The model.
        gradient_order: The order that an interrupted run recorded. The order of another set
            of parameters is ignored.
        **kwargs: As for ``MMDistributedDataParallel``.

    Attributes:
        gradient_order: The names of the trained parameters, in the order of their gradients.
            None before the first step.
    """

    def __init__(self, module: nn.Module, gradient_order: Optional[Sequence[str]] = None,
                 **kwargs) -> None:
        changes_order = not (kwargs.get('find_unused_parameters') or kwargs.get('static_graph'))
        self.gradient_order = gradient_order if changes_order else None
        super().__init__(module, **kwargs)
        if self.gradient_order is not None:
            # before its next forward pass, DDP makes buckets in the order of the reducer
            self.reducer._push_all_rebuilt_params()
        elif changes_order:
            self._record_order()

    def _build_params_for_reducer(self) -> Tuple[list, list]:
        """The trained parameters, in ``gradient_order`` if it fits them."""
        parameters, are_sparse = super()._build_params_for_reducer()
        names = self._names_of(parameters)
        places = {name: place for place, name in enumerate(self.gradient_order or ())}
        if places.keys() != set(names):
            self.gradient_order = None
            return parameters, are_sparse
        order = sorted(range(len(names)), key=lambda index: places[names[index]])
        return [parameters[index] for index in order], [are_sparse[index] for index in order]

    def _names_of(self, parameters: Sequence[nn.Parameter]) -> List[str]:
        names = {id(parameter): name for name, parameter in self.module.named_parameters()}
        return [names[id(parameter)] for parameter in parameters]

    def _record_order(self) -> None:
        """Record the order of the first backward pass that adds gradients."""
        parameters, _ = super()._build_params_for_reducer()
        ready: List[str] = []
        handles = []

        def record(name: str) -> None:
            if not self.require_backward_grad_sync:  # gradients are accumulated
                return
            ready.append(name)
            if len(ready) == len(parameters):
                self.gradient_order = ready
                for handle in handles:
                    handle.remove()

        for name, parameter in zip(self._names_of(parameters), parameters, strict=True):
            handles.append(parameter.register_post_accumulate_grad_hook(
                lambda _, name=name: record(name)))
