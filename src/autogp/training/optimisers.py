"""Adam by PyTorch's own function, since its class would load a compiler first, and TensorFlow's RMSProp."""

from collections.abc import Iterable, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

__all__ = ["Adam", "Optimiser", "RMSProp"]

DECAY, EPSILON = 0.9, 1e-10  # of RMSProp


class Optimiser:
    """What is remembered of each parameter's gradients, `state`, and the step that follows from them."""

    averages: ClassVar[dict[str, float]]  # of gradients, by their names: what they start at

    def __init__(self, parameters: Iterable[nn.Parameter]):
        self.parameters = list(parameters)
        self.state: dict[int, dict[str, Tensor]] = {}  # by the number of the parameter; none before its first step

    @property
    def taken(self) -> int:
        """How many steps it has made."""
        return max((int(values["step"]) for values in self.state.values()), default=0)

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], rates: Sequence[float]) -> None:
        """Moves each parameter by its gradient, at its own learning rate; a rate of 0 leaves it where it is."""
        for number, parameter in enumerate(self.parameters):
            if number not in self.state:
                steps = torch.zeros((), dtype=torch.float32, device=parameter.device)
                self.state[number] = {"step": steps} | {
                    name: torch.full_like(parameter, start) for name, start in self.averages.items()
                }
        for rate in dict.fromkeys(rates):
            alike = [number for number, own in enumerate(rates) if own == rate]
            if rate > 0 and alike:
                self._move(
                    [self.parameters[number] for number in alike],
                    [gradients[number].contiguous() for number in alike],
                    {name: [self.state[number][name] for number in alike] for name in ("step", *self.averages)},
                    rate,
                )

    def _move(
        self, parameters: list[Tensor], gradients: list[Tensor], state: dict[str, list[Tensor]], learning_rate: float
    ) -> None:
        raise NotImplementedError


class Adam(Optimiser):
    averages: ClassVar[dict[str, float]] = {"exp_avg": 0.0, "exp_avg_sq": 0.0}

    def _move(
        self, parameters: list[Tensor], gradients: list[Tensor], state: dict[str, list[Tensor]], learning_rate: float
    ) -> None:
        adam(
            parameters,
            gradients,
            state["exp_avg"],
            state["exp_avg_sq"],
            [],
            state["step"],
            fused=all(parameter.is_contiguous() for parameter in parameters),  # it takes no account of strides
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=learning_rate,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )


class RMSProp(Optimiser):
    """TensorFlow's, which the paper used: m <- 0.9 m + 0.1 g^2 from m = 1, and x <- x - rate g / sqrt(m + 1e-10)."""

    averages: ClassVar[dict[str, float]] = {"square_avg": 1.0}

    def _move(
        self, parameters: list[Tensor], gradients: list[Tensor], state: dict[str, list[Tensor]], learning_rate: float
    ) -> None:
        for parameter, gradient, square, step in zip(
            parameters, gradients, state["square_avg"], state["step"], strict=True
        ):
            step.add_(1)
            square.mul_(DECAY).addcmul_(gradient, gradient, value=1 - DECAY)
            parameter.addcdiv_(gradient, (square + EPSILON).sqrt(), value=-learning_rate)
