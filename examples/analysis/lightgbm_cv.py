"""Gradient boosting: data sets, training with early results, a file of the model and of the importances."""

import lightgbm as lgb
import numpy as np

rng = np.random.default_rng(0)
X = rng.normal(size=(200, 5))
y = (X[:, 0] + X[:, 1] ** 2 > 0.5).astype(int)
train = lgb.Dataset(X[:150], y[:150])
params = {"objective": "binary", "verbosity": -1, "num_leaves": 7, "seed": 1, "num_threads": 1, "deterministic": True}
booster = lgb.train(params, train, num_boost_round=10)
booster.save_model("model.txt")
np.save("predicted.npy", booster.predict(X[150:]))
np.savetxt("importance.csv", booster.feature_importance())
