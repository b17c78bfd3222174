"""GPyTorch as a contender; run by a Python that has it.

As its documentation has it: `ApproximateGP` with the whitened `VariationalStrategy`, for classes wrapped in
`IndependentMultitaskVariationalStrategy`, and `VariationalELBO`; `CholeskyVariationalDistribution` with Adam, or a
natural one with `NGD` for q beside Adam for the rest (tutorial "SVGP with natural gradient descent"):
`NaturalVariationalDistribution` for Gaussian noise, `TrilNaturalVariationalDistribution` for classes.
"""

import gpytorch
import numpy as np
import torch
from gpytorch import kernels, likelihoods, variational
from worker import Server, threads


class Process(gpytorch.models.ApproximateGP):
    def __init__(self, problem, natural):
        z, latents = torch.from_numpy(problem["z"]).to(torch.get_default_dtype()), problem["classes"] or 1
        batch = torch.Size([latents] if problem["classes"] else [])
        distribution = variational.CholeskyVariationalDistribution
        if natural and problem["classes"]:
            distribution = variational.TrilNaturalVariationalDistribution
        elif natural:
            distribution = variational.NaturalVariationalDistribution
        strategy = variational.VariationalStrategy(self, z, distribution(z.shape[-2], batch_shape=batch))
        if problem["classes"]:
            strategy = variational.IndependentMultitaskVariationalStrategy(strategy, num_tasks=latents)
        super().__init__(strategy)
        own = batch if z.ndim == 3 else torch.Size()  # a kernel for each class, or one for all
        kind = {"rbf": kernels.RBFKernel, "matern52": kernels.MaternKernel}[problem["kernel"]]
        self.mean_module = gpytorch.means.ZeroMean(batch_shape=own)
        self.covar_module = kernels.ScaleKernel(kind(ard_num_dims=z.shape[-1], batch_shape=own), batch_shape=own)
        self.covar_module.base_kernel.lengthscale = problem["lengthscale"]
        self.covar_module.outputscale = problem["variance"]

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class Model:
    def __init__(self, problem, recipe):
        torch.set_default_dtype(getattr(torch, recipe["precision"]))
        torch.manual_seed(0)
        self.samples, self.classes = recipe["samples"], problem["classes"]
        natural = recipe["optimiser"] == "natural"
        self.process = Process(problem, natural)
        if self.classes:
            self.likelihood = likelihoods.SoftmaxLikelihood(num_classes=self.classes, mixing_weights=False)
        else:
            self.likelihood = likelihoods.GaussianLikelihood()
            self.likelihood.noise = problem["noise"]
        self.bound = gpytorch.mlls.VariationalELBO(self.likelihood, self.process, problem["num_data"])
        rate, kernel = recipe["learning_rate"], list(self.process.covar_module.parameters())
        moved = self.process.hyperparameters() if natural else self.process.parameters()
        rest = [one for one in [*moved, *self.likelihood.parameters()] if not any(one is other for other in kernel)]
        groups = [{"params": rest}, {"params": kernel, "lr": recipe.get("kernel_rate", 1.0) * rate}]
        self.optimisers = [torch.optim.Adam(groups, lr=rate)]
        if natural:
            own = self.process.variational_parameters()
            self.optimisers.append(gpytorch.optim.NGD(own, problem["num_data"], lr=recipe["natural_rate"]))
        self._training(True)

    def _training(self, on):
        self.process.train(on)
        self.likelihood.train(on)

    def to_batch(self, x, y):
        dtype = torch.get_default_dtype()
        return torch.from_numpy(x).to(dtype), torch.from_numpy(y).to(torch.int64 if self.classes else dtype)

    def step(self, batch):
        self._training(True)
        for optimiser in self.optimisers:
            optimiser.zero_grad()
        with gpytorch.settings.num_likelihood_samples(self.samples):
            (-self.bound(self.process(batch[0]), batch[1])).backward()
        for optimiser in self.optimisers:
            optimiser.step()

    def predictor(self):
        self._training(False)

        @torch.no_grad()
        def predict(x):
            latent = self.process(torch.from_numpy(np.array(x)).to(torch.get_default_dtype()))
            found = latent if self.classes else self.likelihood(latent)
            return found.mean.numpy(), found.variance.numpy()

        return predict


def first_fit(x, y):
    """ExactGP and 50 steps of Adam at 0.1, as in "Simple GP regression"."""

    class Exact(gpytorch.models.ExactGP):
        def __init__(self, x, y, likelihood):
            super().__init__(x, y, likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = kernels.ScaleKernel(kernels.RBFKernel(ard_num_dims=x.shape[1]))

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    x, y = torch.from_numpy(x).float(), torch.from_numpy(y).float()
    likelihood = likelihoods.GaussianLikelihood()
    model = Exact(x, y, likelihood).train()
    bound, adam = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model), torch.optim.Adam(model.parameters(), 0.1)
    for _ in range(50):
        adam.zero_grad()
        (-bound(model(x), y)).backward()
        adam.step()
    model.eval()
    likelihood.eval()
    with torch.no_grad():
        likelihood(model(x + 0.01)).mean.numpy()


if __name__ == "__main__":
    torch.set_num_threads(threads())
    versions = {"gpytorch": gpytorch.__version__, "torch": torch.__version__, "numpy": np.__version__}
    Server(Model, first_fit, versions).run()
