"""GPflow as a contender; run by a Python that has it.

As its documentation has it: a whitened SVGP, steps compiled by `tf.function`, tf_keras' Adam, and for natural gradients
`NaturalGradient(gamma)` for q beside Adam for the rest (notebooks "Natural gradients" and "Stochastic variational
inference for scalability with SVGP"). As their authors advise where the likelihood is not Gaussian, natural steps grow
to their full size over the first five (Salimbeni et al., 2018; GPflow's issue 820). Predictions are those of
`model.posterior()`, compiled once, with a cache that is brought up to date. `lbfgs` is SGPR with SciPy's optimiser, its
way for regressions that fit in memory.
"""

import contextlib
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.keras import tf_keras
from problems import scaled, scores
from worker import Server, threads

JITTER = {"float32": 1e-4, "float64": 1e-6}  # 1e-6 is its default; in float32 a safe one costs nothing

FIRST_RATE, RAMP = 1e-4, 5  # of natural gradients: where they start, and the steps until they have their full size


class Model:
    def __init__(self, problem, recipe):
        gpflow.config.set_default_float(getattr(np, recipe["precision"]))
        gpflow.config.set_default_jitter(JITTER[recipe["precision"]])
        self.dtype = gpflow.config.default_float()
        z, self.classes = problem["z"].astype(self.dtype), problem["classes"]
        separate, latents = z.ndim == 3, self.classes or 1
        kind = {"rbf": gpflow.kernels.SquaredExponential, "matern52": gpflow.kernels.Matern52}[problem["kernel"]]

        def kernel():
            return kind(problem["variance"], np.full(z.shape[-1], problem["lengthscale"], self.dtype))

        points = gpflow.inducing_variables.InducingPoints
        if separate:
            kernels = gpflow.kernels.SeparateIndependent([kernel() for _ in range(latents)])
            inducing = gpflow.inducing_variables.SeparateIndependentInducingVariables([points(each) for each in z])
        else:
            kernels, inducing = kernel(), points(z)
        if self.classes:
            likelihood = gpflow.likelihoods.Softmax(latents)
            likelihood.num_monte_carlo_points = recipe["samples"]
        else:
            likelihood = gpflow.likelihoods.Gaussian(problem["noise"])
        self.rates, self.posterior = [], None
        if recipe["optimiser"] == "lbfgs":
            x, y = scaled(problem, problem["x_train"]), problem["y_train"][:, None]
            rows = tf.constant(x, self.dtype), tf.constant(y, self.dtype)
            self.model = gpflow.models.SGPR(rows, kernels, inducing, noise_variance=problem["noise"])
        else:
            self.model = gpflow.models.SVGP(
                kernels, likelihood, inducing, num_latent_gps=latents, num_data=problem["num_data"]
            )
            self._compile(recipe, z.shape[-1])

    def _compile(self, recipe, inputs):
        model, natural = self.model, None
        if recipe["optimiser"] == "natural":
            self.gamma = tf.Variable(recipe["natural_rate"], trainable=False, dtype=self.dtype)
            if self.classes:
                self.rates = list(np.geomspace(FIRST_RATE, recipe["natural_rate"], RAMP))
            natural = gpflow.optimizers.NaturalGradient(self.gamma)
            gpflow.set_trainable(model.q_mu, False)
            gpflow.set_trainable(model.q_sqrt, False)
        parts, shares = [list(model.trainable_variables)], [1.0]
        if "kernel_rate" in recipe:  # an Adam of its own
            kernel = list(model.kernel.trainable_variables)
            rest = [one for one in model.trainable_variables if not any(one is other for other in kernel)]
            parts, shares = [rest, kernel], [1.0, recipe["kernel_rate"]]
        adams = [tf_keras.optimizers.Adam(share * recipe["learning_rate"]) for share in shares]
        for adam, variables in zip(adams, parts, strict=True):
            adam.build(variables)
        targets = tf.TensorSpec([None, 1], tf.int32 if self.classes else self.dtype)

        @tf.function(input_signature=[tf.TensorSpec([None, inputs], self.dtype), targets])
        def step(x, y):
            def loss():
                return model.training_loss((x, y))

            with tf.GradientTape() as tape:
                value = loss()
            found = tape.gradient(value, parts)
            for adam, gradients, variables in zip(adams, found, parts, strict=True):
                adam.apply_gradients(zip(gradients, variables, strict=True))
            if natural:
                natural.minimize(loss, [(model.q_mu, model.q_sqrt)])

        self._step = step

    def to_batch(self, x, y):
        y = y.astype(np.int32 if self.classes else self.dtype)
        return tf.constant(x, self.dtype), tf.constant(y[:, None])

    def step(self, batch):
        if self.rates:
            self.gamma.assign(self.rates.pop(0))
        self._step(*batch)

    def predictor(self):
        if self.posterior is None:
            posterior = self.posterior = self.model.posterior(gpflow.posteriors.PrecomputeCacheType.VARIABLE)
            likelihood = self.model.likelihood

            @tf.function(input_signature=[tf.TensorSpec([None, None], self.dtype)])
            def predict(x):
                mean, variance = posterior.predict_f(x)
                return (mean, variance) if self.classes else likelihood.predict_mean_and_var(x, mean, variance)

            self._predict = predict
        else:
            self.posterior.update_cache()
        return lambda x: self._predict(tf.constant(x, self.dtype))


class OutOfTime(Exception):
    pass


class OwnServer(Server):
    def fit(self, data, recipe, turns):
        """Regression with all rows at once is SGPR with SciPy's L-BFGS; all else by steps, as everyone."""
        if recipe["optimiser"] != "lbfgs":
            return super().fit(data, recipe, turns)
        model = Model(data, recipe)

        def after_each(*_):
            if turns(lambda: scores(model, data)):
                raise OutOfTime

        with contextlib.suppress(OutOfTime):
            loss, variables = model.model.training_loss_closure(compile=True), model.model.trainable_variables
            gpflow.optimizers.Scipy().minimize(loss, variables, step_callback=after_each, options={"maxiter": 10_000})
        return model


def first_fit(x, y):
    """GPR and SciPy's optimiser, as in "Basic usage"."""
    model = gpflow.models.GPR((x, y[:, None]), gpflow.kernels.SquaredExponential(lengthscales=np.ones(x.shape[1])))
    gpflow.optimizers.Scipy().minimize(model.training_loss, model.trainable_variables)
    model.predict_y(x)


if __name__ == "__main__":
    tf.get_logger().setLevel("ERROR")
    tf.config.threading.set_intra_op_parallelism_threads(threads())
    tf.config.threading.set_inter_op_parallelism_threads(threads())
    versions = {"gpflow": gpflow.__version__, "tensorflow": tf.__version__, "numpy": np.__version__}
    OwnServer(Model, first_fit, versions).run()
