"""GPflow's Adam step in float32 at MNIST size, compiled with tf.function: a contender of step.py.

python peer_gpflow_step.py M GROUPS SAMPLES THREADS CLOCK, run by a Python that has GPflow.
"""

import sys
import time

import gpflow
import numpy as np
import tensorflow as tf

B, D, Q, NUM_DATA = 1000, 784, 10, 60_000


def main() -> None:
    num_inducing, groups, samples, threads = map(int, sys.argv[1:5])
    clock = {"wall": time.perf_counter, "processor": time.process_time}[sys.argv[5]]
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    gpflow.config.set_default_float(np.float32)
    gpflow.config.set_default_jitter(1e-4)
    rng = np.random.default_rng(0)
    x = tf.constant(rng.standard_normal((B, D)), tf.float32)
    y = tf.constant(rng.integers(0, Q, (B, 1)), tf.int32)

    def kernel() -> gpflow.kernels.Kernel:
        return gpflow.kernels.SquaredExponential(variance=5.0, lengthscales=np.full(D, 28.0, np.float32))

    def inducing() -> gpflow.inducing_variables.InducingPoints:
        return gpflow.inducing_variables.InducingPoints(rng.standard_normal((num_inducing, D)).astype(np.float32))

    if groups == 1:
        kernels, points = kernel(), inducing()
    else:
        kernels = gpflow.kernels.SeparateIndependent([kernel() for _ in range(Q)])
        points = gpflow.inducing_variables.SeparateIndependentInducingVariables([inducing() for _ in range(Q)])
    likelihood = gpflow.likelihoods.Softmax(Q)
    likelihood.num_monte_carlo_points = samples
    model = gpflow.models.SVGP(kernels, likelihood, points, num_latent_gps=Q, num_data=NUM_DATA)
    optimiser = tf.optimizers.Adam(1e-3)
    optimiser.build(model.trainable_variables)

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = model.training_loss((x, y))
        optimiser.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )

    step()
    step()
    print("ready", flush=True)
    for _ in sys.stdin:
        started = clock()
        step()
        print(clock() - started, flush=True)


if __name__ == "__main__":
    main()
