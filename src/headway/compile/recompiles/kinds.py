"""Every kind of recompile cause: its title and its cure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """In a cure `{0}` is the input as the code says it, `{1}` what it was compiled for, `{2}` the
    guard itself."""

    title: str
    cure: str
    marked: bool = False  # a setting of torch cures it, without a change of code
    of_input: bool = True  # what is named is an input of the compiled code


KINDS = {
    "size": Kind(
        "a size changes",
        "mark that dimension as dynamic",
        marked=True,
    ),
    "zero_one": Kind(
        "a size becomes 0 or 1",
        "torch compiles 0 and 1 for themselves, also of a dynamic size: mark it as unbacked, or "
        "drop (or pad) batches that small. Where the code asks for such a size torch refuses it",
        marked=True,
    ),
    "duck": Kind(
        "two sizes were equal by chance",
        "mark both as dynamic: then they are not taken to be one, as dynamic=True does; or set "
        "torch.fx.experimental._config.use_duck_shape = False",
        marked=True,
    ),
    "parameter": Kind(
        "a parameter's size changes",
        "modules of several widths share one compiled function: mark their parameters as dynamic, "
        "or compile each module for itself: module.compile()",
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
        "keep it in a buffer: self.register_buffer(..., torch.tensor({1}))",
        marked=True,
    ),
    "pinned": Kind(
        "the code needs the value of an integer",
        "a loop over range({0}), an index or a comparison needs a graph for each value: compute it "
        "with tensors (torch.where, arange and a mask), or move it out of the compiled function",
    ),
    "branch": Kind(
        "the code asks for a size",
        "`{2}` holds in one graph only: take the branch (or the rounding to a multiple) out of the "
        "compiled function, or pad the input so that it always holds",
    ),
    "float": Kind(
        "a Python float changes",
        "pass it as a tensor, torch.tensor({0}), and fill_() it when it changes; a float itself "
        "costs one more compile, and no setting avoids that",
    ),
    "constant": Kind(
        "a bool, string or other constant changes",
        "each value has a graph of its own: keep it the same after the start, or make a compiled "
        "function for each value before the loop",
    ),
    "none": Kind(
        "an input is None at times",
        "always pass a tensor (of zeros, or a mask) instead of None",
    ),
    "length": Kind(
        "the length of a list changes",
        "a graph is unrolled over a list: pass one tensor (torch.stack, or torch.cat and offsets), "
        "or pad the list to one length",
    ),
    "keys": Kind(
        "the keys of a dict change",
        "pass the same keys every time, in the same order; an empty tensor for what is missing",
    ),
    "type": Kind(
        "the type of an input changes",
        "pass the same type every time ({1}): a list is not a tuple",
    ),
    "dtype": Kind(
        "a dtype changes",
        "cast before the call: {0} = {0}.to(...)",
    ),
    "rank": Kind(
        "the number of dimensions changes",
        "give it the same number of dimensions before the call: unsqueeze, or view",
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
        "the kind of a tensor changes",
        "tensors made under inference_mode, on another device, or sparse ones are compiled anew: "
        "make {0} in the same way every time (no_grad instead of inference_mode)",
    ),
    "tensor_type": Kind(
        "the class of a tensor changes",
        "pass the same class every time: a Parameter or a subclass is no plain tensor",
    ),
    "tensor": Kind(
        "a property of a tensor changes",
        "make it the same before the call",
    ),
    "alias": Kind(
        "one tensor is passed twice",
        "pass a clone() where two arguments are the same tensor, every time or never",
        of_input=False,
    ),
    "training": Kind(
        "a module goes from train() to eval()",
        "each mode is a graph of its own. Evaluate without compiling: call the module itself "
        "(compiled._orig_mod), or under torch.compiler.set_stance('force_eager')",
    ),
    "grad_mode": Kind(
        "gradients are on at one call, off at another",
        "each mode is a graph of its own: call it in the same mode, or put torch.no_grad() inside "
        "the compiled function",
        of_input=False,
    ),
    "autocast": Kind(
        "autocast is on at one call, off at another",
        "put torch.autocast inside the compiled function, or around every call of it",
        of_input=False,
    ),
    "global_state": Kind(
        "a global setting of torch changes",
        "set it once, before the first call: {0}",
        of_input=False,
    ),
    "modes": Kind(
        "a mode or the default device changes",
        "enter torch.device(...), or any other mode, around every call or around none",
        of_input=False,
    ),
    "identity": Kind(
        "another function or object",
        "a graph is compiled for one object: make the function (lambda, closure, enum) once, "
        "outside the loop, and pass the same one; or compile one function for each",
    ),
    "attribute": Kind(
        "an object has an attribute at times",
        "set the attribute in __init__, so that it is always there",
    ),
    "backend": Kind(
        "torch.compile is called again with another backend",
        "call torch.compile once, before the loop, and keep what it gives",
        of_input=False,
    ),
    "freed": Kind(
        "what it was compiled for is gone",
        "keep the object: a module or tensor made anew for every call is compiled anew",
        of_input=False,
    ),
    "rebuilt": Kind(
        "the same code is compiled from the start again",
        "the function is made anew (exec, a class in a loop) or torch._dynamo.reset() is called: "
        "make it once, before the loop",
        of_input=False,
    ),
    "late": Kind(
        "compiled for the first time after the start",
        "call it once before the loop, with a batch of the same form",
        of_input=False,
    ),
    "unknown": Kind(
        "torch gives no reason that is known here",
        "see TORCH_LOGS=recompiles_verbose",
        of_input=False,
    ),
}  # fmt: skip
