"""User input: YAML and JSON are read with the location of every value, decoded strictly, and diagnosed in one sentence.

    text ─► document: plain values, and the line of each ─► strict: exactly what a type says, or a sentence that names
                                                            the place, what is there and what may be there

It reads configuration, problem and runtime files, and request bodies. `files` opens files that a user names, regular ones
of a limited size; `arguments` checks what Python functions are given with the same types and sentences.
"""
