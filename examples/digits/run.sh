#!/bin/bash
# Three models of handwritten digits, trained with different seeds, judged together. Needs PyTorch; takes a minute on two cores.
set -e
OUT=work
python prepare.py --out $OUT/digits.npz
for seed in 1 2 3; do
    python train.py --data $OUT/digits.npz --seed $seed --out $OUT/model_$seed.pt
done
python judge.py --data $OUT/digits.npz --models $OUT --out $OUT/scores.json
