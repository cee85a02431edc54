"""Job scripts of Slurm: `gpuyard submit job.sh` with `#SBATCH` lines, and `gpuyard sbatch`.

options.py    the options of sbatch, read from words, from lines of a script and from SBATCH_ variables
values.py     the grammar of their values: times, sizes, GPUs, arrays, dependencies
script.py     which lines of a file are directives
job.py        the request that the options mean, and what is not done
job.sh        runs a script on the node as Slurm would: variables, output files, signals
srun.sh       reads the options of srun, and starts the ranks of a job on one node
steps.py      starts ranks on several nodes; runs there without gpuyard
scontrol.sh, sbatch.sh   other programs of Slurm for the script
"""
