"""Fine-tuning with a trainer object: evaluate, train, evaluate, save."""

import json

import torch
from small_trainer import Trainer, TrainingArguments

torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
data = [(torch.randn(4, 3), torch.randn(4, 1)) for _ in range(6)]
args = TrainingArguments(num_train_epochs=2)
trainer = Trainer(model=model, args=args, train_dataset=data[:4], eval_dataset=data[4:])
before = trainer.evaluate()
trainer.train()
after = trainer.evaluate()
trainer.save_model("model.pt")
with open("metrics.json", "w") as file:
    json.dump([before, after], file)
