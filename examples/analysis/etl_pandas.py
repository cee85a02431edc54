"""Tables: build, join, group, pivot, write."""

import numpy as np
import pandas as pd

orders = pd.DataFrame({"id": range(40), "customer": np.arange(40) % 7, "amount": np.arange(40) * 2.5})
customers = pd.DataFrame({"customer": range(7), "region": list("nnsswwe")})
orders.loc[orders["amount"] > 90, "amount"] = 90.0
joined = orders.merge(customers, on="customer")
by_region = joined.groupby("region")["amount"].agg(["sum", "mean"]).reset_index()
by_region.to_csv("by_region.csv", index=False)
joined["share"] = joined["amount"] / joined["amount"].sum()
top = joined.sort_values("share", ascending=False).head(5)
top.to_csv("top.csv", index=False)
