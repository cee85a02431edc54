"""A teacher is trained, then a student learns its outputs."""

import torch
from torch import nn


def batches(seed, count):
    g = torch.Generator().manual_seed(seed)
    for _ in range(count):
        yield torch.randn(16, 4, generator=g)


def train_teacher():
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    opt = torch.optim.Adam(model.parameters(), 1e-2)
    for x in batches(1, 20):
        loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
        opt.zero_grad()
        loss.backward()
        opt.step()
    return model


def distill(teacher):
    student = nn.Linear(4, 2)
    opt = torch.optim.Adam(student.parameters(), 1e-2)
    for x in batches(2, 20):
        with torch.no_grad():
            goal = torch.softmax(teacher(x) / 2, 1)
        loss = nn.functional.kl_div(torch.log_softmax(student(x) / 2, 1), goal, reduction="batchmean")
        opt.zero_grad()
        loss.backward()
        opt.step()
    return student


torch.manual_seed(0)
teacher = train_teacher()
student = distill(teacher)
torch.save(teacher.state_dict(), "teacher.pt")
torch.save(student.state_dict(), "student.pt")
