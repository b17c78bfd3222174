"""Adam and RMSProp by PyTorch's own functions: its classes would load a compiler first, which takes two seconds."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.rmsprop import rmsprop

__all__ = ["Adam", "Optimiser", "RMSProp"]


class Optimiser:
    """What is remembered of each parameter's gradients, `state`, and the step that follows from them."""

    averages: tuple[str, ...]  # of gradients, by their names

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
                self.state[number] = {"step": steps} | {name: torch.zeros_like(parameter) for name in self.averages}
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
    averages = ("exp_avg", "exp_avg_sq")

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
    averages = ("square_avg",)

    def _move(
        self, parameters: list[Tensor], gradients: list[Tensor], state: dict[str, list[Tensor]], learning_rate: float
    ) -> None:
        rmsprop(
            parameters,
            gradients,
            state["square_avg"],
            [],
            [],
            state["step"],
            lr=learning_rate,
            alpha=0.9,
            eps=1e-8,
            weight_decay=0.0,
            momentum=0.0,
            centered=False,
        )
