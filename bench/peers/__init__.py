"""`make bench-peers`: a generated kernel beside the libraries people would use instead.

One driver (standard library only) starts one process for each contender, all pinned to one core and
to one thread, gives every one the same weights and inputs, compares the outputs, and lets the
contenders take turns. Modules, in the order they depend on each other:

    problem    what a layer computes: sizes, masks, biases, read from a resolved config
    tensors    its weights and inputs, drawn once and kept in files
    protocol   requests to a worker process and its answers, one JSON line each
    engines/   one library each; only these import anything but the standard library
    worker     the process around one engine
    samples    times, and which of them were taken in the machine's good state
    judge      whether two outputs are the same answer
    contenders who takes part, in which process
    session    prepare, compare, take turns
    document   the results as `attngen bench --json` writes them
    table      the document as text

kernels.lua builds what is measured, page.lua makes the HTML report, setup.sh the environment.
"""
