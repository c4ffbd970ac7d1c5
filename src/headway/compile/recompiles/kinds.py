"""Every kind of recompile cause: its title and how to avoid it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of cause.

    In `cure`, `{0}` is the input as spelled in the code, `{1}` the value it was compiled for, and
    `{2}` the guard.
    """

    title: str
    cure: str
    marked: bool = False  # a torch setting avoids it without code changes
    of_input: bool = True  # the source is an input of the compiled code


KINDS = {
    "size": Kind(
        "a size changes",
        "mark that dimension as dynamic",
        marked=True,
    ),
    "zero_one": Kind(
        "a size becomes 0 or 1",
        "torch specializes on sizes 0 and 1 even if the size is dynamic: mark it as unbacked, or "
        "drop (or pad) batches that small. torch refuses unbacked sizes where the code branches on "
        "them",
        marked=True,
    ),
    "duck": Kind(
        "two sizes were equal by chance",
        "mark both as dynamic, then torch does not assume that they are equal; or set "
        "torch.fx.experimental._config.use_duck_shape = False",
        marked=True,
    ),
    "parameter": Kind(
        "a parameter's size changes",
        "modules of different widths share one compiled function: mark their parameters as "
        "dynamic, or compile each module separately with module.compile()",
        marked=True,
    ),
    "int": Kind(
        "an integer changes",
        "mark it as dynamic; or pass it as a tensor: torch.tensor({0})",
        marked=True,
    ),
    "module_int": Kind(
        "an integer of a module changes",
        "mark it as dynamic; or set torch._dynamo.config.allow_unspec_int_on_nn_module = True; or "
        "store it in a buffer: self.register_buffer(..., torch.tensor({1}))",
        marked=True,
    ),
    "pinned": Kind(
        "the code depends on the value of an integer",
        "a loop over range({0}), an index or a comparison needs one graph per value: use tensor "
        "operations (torch.where, arange and a mask), or move it out of the compiled function",
    ),
    "branch": Kind(
        "the code branches on a size",
        "`{2}` holds in one graph only: move the branch (or the rounding to a multiple) out of the "
        "compiled function, or pad the input so that it always holds",
    ),
    "float": Kind(
        "a Python float changes",
        "pass it as a tensor, torch.tensor({0}), and update it with fill_(); a Python float costs "
        "one more compile that no setting avoids",
    ),
    "constant": Kind(
        "a bool, string or other constant changes",
        "each value needs its own graph: do not change it after the start, or create a compiled "
        "function for each value before the loop",
    ),
    "none": Kind(
        "an input is sometimes None",
        "always pass a tensor (zeros, or a mask) instead of None",
    ),
    "length": Kind(
        "the length of a list changes",
        "a graph is unrolled over a list: pass one tensor (torch.stack, or torch.cat with offsets) "
        "or pad the list to a fixed length",
    ),
    "keys": Kind(
        "the keys of a dict change",
        "pass the same keys every time, in the same order, with an empty tensor for missing ones",
    ),
    "type": Kind(
        "the type of an input changes",
        "pass the same type every time ({1}); a list and a tuple are different types",
    ),
    "dtype": Kind(
        "a dtype changes",
        "cast before the call: {0} = {0}.to(...)",
    ),
    "rank": Kind(
        "the number of dimensions changes",
        "use the same number of dimensions before the call: unsqueeze or view",
    ),
    "stride": Kind(
        "the memory layout changes",
        "make it the same before the call: {0} = {0}.contiguous()",
    ),
    "requires_grad": Kind(
        "requires_grad changes",
        "make it the same before the call: {0} = {0}.detach(), or requires_grad_() every time",
    ),
    "device": Kind(
        "the device changes",
        "move it before the call: {0} = {0}.to(device)",
    ),
    "dispatch": Kind(
        "the dispatch keys of a tensor change",
        "tensors from inference_mode, on another device, or sparse ones are recompiled: create {0} "
        "in the same way every time (no_grad instead of inference_mode)",
    ),
    "tensor_type": Kind(
        "the class of a tensor changes",
        "pass the same class every time: a Parameter or a subclass is not a plain tensor",
    ),
    "tensor": Kind(
        "a property of a tensor changes",
        "make it the same before the call",
    ),
    "alias": Kind(
        "the same tensor is passed twice",
        "pass a clone() where two arguments are the same tensor, every time or never",
        of_input=False,
    ),
    "training": Kind(
        "a module switches between train() and eval()",
        "each mode needs its own graph. Evaluate without compiling: call the module itself "
        "(compiled._orig_mod), or under torch.compiler.set_stance('force_eager')",
    ),
    "grad_mode": Kind(
        "grad mode changes between calls",
        "each mode needs its own graph: call it in the same mode, or put torch.no_grad() inside "
        "the compiled function",
        of_input=False,
    ),
    "autocast": Kind(
        "autocast changes between calls",
        "put torch.autocast inside the compiled function, or around every call of it",
        of_input=False,
    ),
    "global_state": Kind(
        "a global setting of torch changes",
        "set it once, before the first call: {0}",
        of_input=False,
    ),
    "modes": Kind(
        "a torch mode or the default device changes",
        "enter torch.device(...), or any other mode, around every call or around none",
        of_input=False,
    ),
    "identity": Kind(
        "a function or object was replaced",
        "a graph is compiled for one object: create it (lambda, closure, enum) once, outside the "
        "loop, and pass the same one; or compile one function for each",
    ),
    "attribute": Kind(
        "an object sometimes has an attribute",
        "set the attribute in __init__, so that it always exists",
    ),
    "backend": Kind(
        "torch.compile is called again with another backend",
        "call torch.compile once, before the loop, and reuse the result",
        of_input=False,
    ),
    "freed": Kind(
        "the object it was compiled for was deleted",
        "keep the object: a new module or tensor for every call causes a new compile",
        of_input=False,
    ),
    "rebuilt": Kind(
        "the same code is compiled from scratch again",
        "the function is recreated (exec, a class in a loop) or torch._dynamo.reset() is called: "
        "create it once, before the loop",
        of_input=False,
    ),
    "late": Kind(
        "compiled for the first time after the start",
        "call it once before the loop with a batch of the same shape",
        of_input=False,
    ),
    "unknown": Kind(
        "torch gives no reason that Headway recognizes",
        "see TORCH_LOGS=recompiles_verbose",
        of_input=False,
    ),
}  # fmt: skip
