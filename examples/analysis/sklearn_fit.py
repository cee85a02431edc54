"""The usual order of a tabular script: split, scale, fit, predict, score."""

import json

import numpy as np
from small_sklearn import Ridge, StandardScaler, train_test_split

rng = np.random.default_rng(0)
X = rng.normal(size=(80, 4))
y = X @ np.array([1.0, 2.0, 0.0, -1.0]) + rng.normal(size=80) * 0.1
X_train, X_test, y_train, y_test = train_test_split(X, y)
scaler = StandardScaler()
X_train = scaler.fit_transform(X_train)
X_test = scaler.transform(X_test)
model = Ridge(alpha=0.5)
model.fit(X_train, y_train)
predicted = model.predict(X_test)
np.save("predicted.npy", predicted)
with open("score.json", "w") as file:
    json.dump(model.score(X_test, y_test), file)
