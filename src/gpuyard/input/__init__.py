"""WHAT PEOPLE WRITE: YAML and JSON read with the place of every value, decoded strictly, and diagnosed in one sentence.

    text ─► document: plain values, and the line of each ─► strict: exactly what a type says, or a sentence that names
                                                            the place, what is there and what may be there

Files of settings, problems and runtimes, and the bodies of requests, all come in here. Text comes in; opening files is
the caller's work.
"""
