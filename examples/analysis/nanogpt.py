"""A character model trained by inline steps: get_batch, autocast, AdamW, estimates of the loss, checkpoints."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(1337)
batch_size, block_size, max_iters, eval_interval, eval_iters = 4, 8, 20, 10, 2
text = "the quick brown fox jumps over the lazy dog. " * 20
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
data = torch.tensor([stoi[c] for c in text])
n = int(0.9 * len(data))
train_data, val_data = data[:n], data[n:]


def get_batch(split):
    source = train_data if split == "train" else val_data
    ix = torch.randint(len(source) - block_size, (batch_size,))
    x = torch.stack([source[i : i + block_size] for i in ix])
    y = torch.stack([source[i + 1 : i + block_size + 1] for i in ix])
    return x, y


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(len(chars), 16)
        self.attend = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, len(chars))

    def forward(self, x, targets=None):
        h = self.embed(x)
        h = h + self.attend(h, h, h, need_weights=False)[0]
        logits = self.head(h)
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


@torch.no_grad()
def estimate_loss():
    model.eval()
    out = {}
    for split in ["train", "val"]:
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            _, loss = model(*get_batch(split))
            losses[k] = loss.item()
        out[split] = losses.mean()
    model.train()
    return out


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(max_iters):
    if step % eval_interval == 0:
        losses = estimate_loss()
        torch.save({"model": model.state_dict(), "val": losses["val"]}, f"ckpt_{step}.pt")
    xb, yb = get_batch("train")
    with torch.autocast("cpu", enabled=False):
        logits, loss = model(xb, yb)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
torch.save(model.state_dict(), "final.pt")
