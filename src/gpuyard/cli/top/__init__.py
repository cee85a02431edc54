"""`gpuyard top`: GPUs, queue and tasks, live, with keys to look closer and to cancel. Textual is imported only here.

`command` prints once where there is no terminal to draw on; `readers` fetch in threads; `app` draws; `panels` has the
widgets, `screens` the pages behind keys.
"""
