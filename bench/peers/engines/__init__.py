"""One module a library. Each offers

    describe(options) -> str                      version, and what it runs on
    variants(problem, tensors, options) -> {name: build}
    empty(options) -> base.Layer                  only where a call costs something by itself

where build() makes a base.Layer. Whatever a module cannot do it raises as problem.Unsupported or as
the library's own exception; the worker reports it.
"""

# The order of the columns. A contender is an engine with options; see session.contenders().
MODULES = {
    "attngen": "c_layer",
    "blas": "c_layer",
    "torch": "torch_layer",
    "compiled": "torch_layer",
    "onnxruntime": "onnx_layer",
    "openvino": "openvino_layer",
    "double": "double_layer",
}
