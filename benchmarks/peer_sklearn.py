"""scikit-learn's exact Gaussian processes as a contender, for up to a few thousand rows.

Regression: an anisotropic Matérn 5/2 kernel and white noise, optimised by L-BFGS from one start. Classification: the
Laplace approximation, one class against the rest, with an RBF kernel; its gradients take a lengthscale in common.
"""

import time

import numpy as np
import sklearn
from problems import class_scores, read_problem, regression_scores, scaled
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor, kernels
from worker import Server


class ExactServer(Server):
    def exact(self, problem):
        data = read_problem(problem)
        x, x_test = (scaled(data, data[name]) for name in ("x_train", "x_test"))
        y, y_test = data["y_train"], data["y_test"]
        GaussianProcessRegressor().fit(x[:10], y[:10])  # what it imports late is on no clock
        started = time.perf_counter()
        size = kernels.ConstantKernel(data["variance"])
        if data["classes"]:
            kernel = size * kernels.RBF(data["lengthscale"])
            model = GaussianProcessClassifier(kernel, random_state=0).fit(x, y)
            took = time.perf_counter() - started
            return {**class_scores(y_test, model.predict_proba(x_test)), "seconds": took}
        kernel = size * kernels.Matern(np.full(x.shape[1], data["lengthscale"]), nu=2.5)
        model = GaussianProcessRegressor(kernel + kernels.WhiteKernel(data["noise"]), random_state=0).fit(x, y)
        took = time.perf_counter() - started
        mean, deviation = model.predict(x_test, return_std=True)
        return {**regression_scores(y_test, mean, deviation**2, data["y_scale"]), "seconds": took}


def first_fit(x, y):
    kernel = kernels.ConstantKernel() * kernels.RBF(np.ones(x.shape[1])) + kernels.WhiteKernel()
    GaussianProcessRegressor(kernel).fit(x, y).predict(x, return_std=True)


if __name__ == "__main__":
    ExactServer(object, first_fit, {"scikit-learn": sklearn.__version__, "numpy": np.__version__}).run()
