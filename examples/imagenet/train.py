"""Train an image classifier on many GPUs: the shape that most training scripts have.

    torchrun --nproc_per_node=8 train.py --data /data/imagenet --arch resnet50

Epochs of training and validation over folders of images, one process for each GPU, checkpoints that it resumes from, the best
model kept, and at the end a test and a file for serving. `gpuyard analyze` reads its tasks from it without running it.
"""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, models, transforms


def parse_args():
    parser = argparse.ArgumentParser(description="Train an image classifier.")
    parser.add_argument("--data", default="data/imagenet", help="folder with train, val and test")
    parser.add_argument("--out", default="runs/imagenet", help="where checkpoints and reports go")
    parser.add_argument("--arch", default="resnet50")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--workers", type=int, default=8)
    return parser.parse_args()


def make_loader(folder, args, train):
    normalise = transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
    if train:
        change = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()]
    else:
        change = [transforms.Resize(256), transforms.CenterCrop(224)]
    images = datasets.ImageFolder(folder, transforms.Compose([*change, transforms.ToTensor(), normalise]))
    sampler = DistributedSampler(images, shuffle=train)
    return DataLoader(images, args.batch_size, sampler=sampler, num_workers=args.workers, pin_memory=True)


def train_epoch(model, loader, criterion, optimizer, scaler, device):
    model.train()
    seen = correct = 0
    for images, labels in loader:
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        with torch.autocast("cuda", dtype=torch.float16):
            output = model(images)
            loss = criterion(output, labels)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        seen += labels.size(0)
        correct += (output.argmax(1) == labels).sum().item()
    return correct / seen


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    counts = torch.zeros(2, device=device)
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        with torch.autocast("cuda", dtype=torch.float16):
            output = model(images)
        counts += torch.stack([(output.argmax(1) == labels).sum(), torch.tensor(labels.size(0), device=device)])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def save_checkpoint(folder, name, epoch, model, optimizer):
    state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, os.path.join(folder, name))


def load_checkpoint(folder, model, optimizer, device):
    path = os.path.join(folder, "last.pt")
    if not os.path.exists(path):
        return 0
    state = torch.load(path, map_location=device)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"] + 1


def export(folder, model):
    best = torch.load(os.path.join(folder, "best.pt"), map_location="cpu")
    model.load_state_dict(best["model"])
    torch.onnx.export(model, torch.zeros(1, 3, 224, 224), os.path.join(folder, "model.onnx"))


def write_report(folder, history, accuracy):
    with open(os.path.join(folder, "report.json"), "w") as file:
        json.dump({"history": history, "test": accuracy}, file)


def main():
    args = parse_args()
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    os.makedirs(args.out, exist_ok=True)

    train_loader = make_loader(os.path.join(args.data, "train"), args, train=True)
    val_loader = make_loader(os.path.join(args.data, "val"), args, train=False)
    test_loader = make_loader(os.path.join(args.data, "test"), args, train=False)

    model = DistributedDataParallel(models.get_model(args.arch).to(device))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    scaler = torch.amp.GradScaler("cuda")
    first = load_checkpoint(args.out, model, optimizer, device)

    best, history = 0.0, []
    for epoch in range(first, args.epochs):
        train_loader.sampler.set_epoch(epoch)
        began = time.time()
        train_accuracy = train_epoch(model, train_loader, criterion, optimizer, scaler, device)
        val_accuracy = evaluate(model, val_loader, device)
        scheduler.step()
        history.append((epoch, train_accuracy, val_accuracy, time.time() - began))
        save_checkpoint(args.out, "last.pt", epoch, model, optimizer)
        if val_accuracy > best:
            best = val_accuracy
            save_checkpoint(args.out, "best.pt", epoch, model, optimizer)

    accuracy = evaluate(model, test_loader, device)
    if dist.get_rank() == 0:
        write_report(args.out, history, accuracy)
        export(args.out, model.module)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
