"""WHAT IS IN THE CODE: tasks and their dependencies, read from sources; nothing of what is read is run.

    FILE.py ─► sources ─► flow ──────┐                      ┌─► drawing (SVG, HTML, PNG)
                 ▲          │ survey ├─► tasks and edges ─► graph ─► levels, critical path, width
    folder ─► programs ─────┘        │                      └─► submission: what the yard would be asked to run
      (scripts, shell, Makefile) ────┘

- `reading` is the front door: a file or folder in, a `Graph` and requests out.
- `sources` reads files and knows what names mean; `texts` reckons paths out of expressions.
- `signs` is the table of what calls tell; `survey` gathers signs and files through the functions that are called.
- `flow` walks what a script does, as a reader would, and says which step needs what of which other; read its head first.
  `changes` sums functions up for it, `objects`, `steps` and `shapes` are its words. `script` makes tasks of its steps.
- `programs` does the same for a folder, where a task is a process and dependencies are files (`shell`, `makefile`).
- `splitting` divides a PyTorch model into stages and replicas. Only there user code is run, in a process of its own;
  `part` runs a part of a script on the yard.
"""
