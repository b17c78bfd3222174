"""Adam and RMSProp by PyTorch's own functions: its classes would load a compiler first, which takes two seconds."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.rmsprop import rmsprop

__all__ = ["Adam", "Optimiser", "RMSProp"]


class Optimiser:
    """What is remembered of each parameter's gradients, `state`, and the step that follows from them.

    `shares` of the learning rate are one for each parameter; without them all take the whole.
    """

    averages: tuple[str, ...]  # of gradients, by their names

    def __init__(self, parameters: Iterable[nn.Parameter], shares: Sequence[float] | None = None):
        self.parameters = list(parameters)
        self.shares = shares or [1.0] * len(self.parameters)
        self.state: dict[int, dict[str, Tensor]] = {}  # by the number of the parameter; none before its first gradient

    @property
    def taken(self) -> int:
        """How many steps it has made."""
        return max((int(values["step"]) for values in self.state.values()), default=0)

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Moves the parameters that have a gradient."""
        moved = [(number, parameter) for number, parameter in enumerate(self.parameters) if parameter.grad is not None]
        for number, parameter in moved:
            if number not in self.state:
                steps = torch.zeros((), dtype=torch.float32, device=parameter.device)
                self.state[number] = {"step": steps} | {name: torch.zeros_like(parameter) for name in self.averages}
        for share in dict.fromkeys(self.shares):
            alike = [(number, parameter) for number, parameter in moved if self.shares[number] == share]
            states = [self.state[number] for number, _ in alike]
            self._move(
                [parameter for _, parameter in alike],
                [parameter.grad for _, parameter in alike if parameter.grad is not None],
                {name: [state[name] for state in states] for name in ("step", *self.averages)},
                share * learning_rate,
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
            fused=True,
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
