"""Triton's interpreter without what it does for nothing, or again in every call.

Kernels compute the same numbers in half the time. Only Triton's private names are touched: where a
release has no such name, its interpreter is as slow as ever.
"""

from __future__ import annotations

import functools
import inspect
import linecache
from collections.abc import Callable
from types import CodeType
from typing import Any

import numpy as np
import triton.language as tl
import triton.runtime.interpreter as interpreter
from triton.language.semantic import TritonSemantic


def quicken() -> None:
    _leave_out_unread_checks()
    _keep_dtypes()
    _keep_block_types()
    _keep_shapes()
    _broadcast_at_once()
    _take_equal_types()
    _unwrap_at_once()
    _pass_the_semantic()
    _widen_by_a_shift()
    _rewrite_once()
    _patch_once_a_launch()
    _sum_in_steps()
    _overflow_in_silence()
    _index_by_one_element()


def _leave_out_unread_checks() -> None:
    """Each sum, difference and product of integers is computed again in 64 bits, for an assertion
    that is only made in debug mode."""
    name = "binary_op_sanitize_overflow_impl"
    if hasattr(TritonSemantic, name) and not interpreter.InterpreterOptions().debug:
        setattr(TritonSemantic, name, lambda self, lhs, rhs, binary_op: None)


def _keep_dtypes() -> None:
    """The table of NumPy's dtypes is made again for each look into it."""
    original: Callable[[Any], np.dtype[Any]] = getattr(interpreter, "_get_np_dtype", None)
    if original is None:
        return
    known: dict[str, np.dtype[Any]] = {}

    def get_np_dtype(given: Any) -> np.dtype[Any]:
        one = given.element_ty if isinstance(given, tl.block_type) else given
        if isinstance(one, tl.pointer_type):
            return original(one)
        if one.name not in known:
            known[one.name] = original(one)
        return known[one.name]

    interpreter._get_np_dtype = get_np_dtype


def _keep_block_types() -> None:
    """The type of a block is made again for each value, with its shape checked and its name. Its
    sizes are kept beside them: the shape is no plain tuple, and slow to compare."""
    original: Callable[..., None] = tl.block_type.__init__
    known: dict[tuple[Any, ...], dict[str, Any]] = {}

    @functools.wraps(original)
    def init(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = (*shape,)
        if not all(type(n) is int for n in sizes):
            original(self, element_ty, shape)
            return
        if isinstance(element_ty, tl.pointer_type):
            original(self, element_ty, [*sizes])
            self._sizes = sizes
            return
        key = (element_ty.name, *sizes)
        if key not in known:
            original(self, element_ty, [*sizes])
            known[key] = vars(self) | {"_sizes": sizes}
        vars(self).update(known[key])

    tl.block_type.__init__ = init
    slow: Callable[[Any, Any], Any] = tl.block_type.with_element_ty

    def with_element_ty(self: Any, scalar_ty: Any) -> Any:
        sizes = vars(self).get("_sizes")
        return slow(self, scalar_ty) if sizes is None else tl.block_type(scalar_ty, [*sizes])

    tl.block_type.with_element_ty = with_element_ty


def _keep_shapes() -> None:
    """The shape of a tensor is a tuple of constants, each with a type: the same for all tensors of
    a shape."""
    if [*inspect.signature(tl.tensor.__init__).parameters] != ["self", "handle", "type"]:
        return
    original: Callable[..., None] = tl.tensor.__init__
    known: dict[Any, tuple[Any, Any]] = {}

    @functools.wraps(original)
    def init(self: Any, handle: Any, type: Any) -> None:
        sizes = vars(type).get("_sizes") if type.is_block() else ()
        if sizes not in known:
            original(self, handle, type)
            if sizes is not None:
                known[sizes] = (self.shape, self.numel)
            return
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = known[sizes]

    tl.tensor.__init__ = init


def _broadcast_at_once() -> None:
    """Each operand of an operation is compared with the other, size by size, and with the result,
    by sizes that are objects of Triton's: most are of the same shape, and the others a row and a
    column, or a block and one number."""
    original: Callable[..., Any] = getattr(TritonSemantic, "broadcast_impl_value", None)
    if original is None:
        return

    def broadcast(self: Any, lhs: Any, rhs: Any) -> Any:
        left, right = (vars(of.type).get("_sizes") for of in (lhs, rhs))
        if left is not None and left == right:
            return lhs, rhs
        if left is None or right is None:
            if left is not None and not rhs.type.is_block():
                return lhs, _splat(self, rhs, left)
            if right is not None and not lhs.type.is_block():
                return _splat(self, lhs, right), rhs
            return original(self, lhs, rhs)
        sizes = tuple(map(max, left, right))
        fit = all({a, b} <= {1, most} for a, b, most in zip(left, right, sizes, strict=False))
        if len(left) != len(right) or not fit:
            return original(self, lhs, rhs)
        return _spread(self, lhs, left, sizes), _spread(self, rhs, right, sizes)

    TritonSemantic.broadcast_impl_value = broadcast


def _splat(semantic: Any, one: Any, sizes: tuple[int, ...]) -> Any:
    """A block of one number, or of one pointer."""
    made = tl.block_type(one.dtype, sizes)
    return semantic.tensor(semantic.builder.create_splat(made, one.handle), made)


def _spread(semantic: Any, block: Any, own: tuple[int, ...], sizes: tuple[int, ...]) -> Any:
    if own == sizes:
        return block
    made = tl.block_type(block.dtype, sizes)
    return semantic.tensor(semantic.builder.create_broadcast(block.handle, sizes), made)


_FLOATS = {"fp16": np.float16, "fp32": np.float32, "fp64": np.float64}
_INTEGERS = {"int32": np.int32, "int64": np.int64}


def _take_equal_types() -> None:
    """Of two operands the common type is found by some twenty questions, and both are converted to
    it: most have it. A number is made a tensor twice, of its own type and then of the other's."""
    name = "binary_op_type_checking_impl"
    original: Callable[..., Any] = getattr(TritonSemantic, name, None)
    flags = ["allow_lhs_ptr", "allow_rhs_ptr", "arithmetic_check", "div_or_mod"]
    taken = [] if original is None else [*inspect.signature(original).parameters]
    if taken != ["self", "lhs", "rhs", *flags]:
        return

    def number(given: Any, dtype: Any) -> Any:
        """A number as one of the other operand's type; None where Triton is to say what it is."""
        kind = type(given)
        if dtype.name in _FLOATS:
            known = _FLOATS[dtype.name] if kind in (int, float) else None
        else:
            fits = kind is int and -(2**31) <= given < 2**31
            known = _INTEGERS[dtype.name] if fits else None
        if known is None:
            return None
        data = np.array([given or 0], dtype=known)  # Triton's constants know of no -0.0
        return tl.tensor(interpreter.TensorHandle(data, dtype), dtype)

    def checked(
        self: Any,
        lhs: Any,
        rhs: Any,
        allow_lhs_ptr: bool = False,
        allow_rhs_ptr: bool = False,
        arithmetic_check: bool = True,
        div_or_mod: bool = False,
    ) -> Any:
        like = lhs if isinstance(lhs, tl.tensor) else rhs
        dtype = like.dtype if isinstance(like, tl.tensor) else None
        plain = dtype is not None and (dtype.name in _FLOATS or dtype.name in _INTEGERS)
        if plain and arithmetic_check and not (div_or_mod and dtype.name == "fp16"):
            first = lhs if isinstance(lhs, tl.tensor) else number(lhs, dtype)
            second = rhs if isinstance(rhs, tl.tensor) else number(rhs, dtype)
            if first is not None and second is not None and first.dtype.name == second.dtype.name:
                return self.broadcast_impl_value(first, second)
        return original(self, lhs, rhs, allow_lhs_ptr, allow_rhs_ptr, arithmetic_check, div_or_mod)

    setattr(TritonSemantic, name, checked)


def _unwrap_at_once() -> None:
    """Of each operand four questions are asked before it is known to be no constant."""
    original: Callable[[Any], Any] = getattr(tl.core, "_unwrap_if_constexpr", None)
    if original is None:
        return
    kept = {tl.tensor, int, float, bool, type(None)}

    def unwrapped(given: Any) -> Any:
        return given if type(given) in kept else original(given)

    tl.core._unwrap_if_constexpr = unwrapped


def _pass_the_semantic() -> None:
    """Each call of a function of Triton's copies its named arguments without one of them, and then
    with it."""
    if not hasattr(interpreter, "_patch_attr") or not hasattr(interpreter, "interpreter_semantic"):
        return
    if [*inspect.signature(interpreter._patch_attr).parameters][:3] != ["obj", "name", "member"]:
        return
    semantic = interpreter.interpreter_semantic
    checks = tl.core.builtin(lambda: None).__code__  # only that it is given

    def patch(obj: Any, name: str, member: Callable[..., Any], builder: Any, scope: Any) -> None:
        if getattr(member, "__code__", None) is checks:
            member = member.__wrapped__  # type: ignore[attr-defined]

        def called(*given: Any, **named: Any) -> Any:
            named["_semantic"] = semantic
            return member(*given, **named)

        scope.set_attr(obj, name, called)

    interpreter._patch_attr = patch


def _widen_by_a_shift() -> None:
    """A bfloat16 is the upper half of a float32. Only Triton's way knows of subnormal ones."""
    original: Callable[..., Any] = getattr(interpreter, "_convert_float", None)
    if original is None:
        return

    def convert(given: Any, input_dtype: Any, output_dtype: Any, rounding_mode: Any) -> Any:
        if (input_dtype.name, output_dtype.name) == ("bf16", "fp32"):
            bits = np.ascontiguousarray(given).view(np.uint16)
            if not ((bits & 0x7F80 == 0) & (bits & 0x7F != 0)).any():
                return bits.astype(np.uint32) << np.uint32(16)
        return original(given, input_dtype, output_dtype, rounding_mode)

    interpreter._convert_float = convert


def _rewrite_once() -> None:
    """A function's source is found by a search of all modules, and twice; what the texts of several
    kernels share is rewritten for each."""
    rewriter = getattr(interpreter, "FunctionRewriter", None)
    used = ("rewrite_ast", "_find_def", "_prepare_source", "_transform_ast")
    if not all(hasattr(rewriter, name) for name in used):
        return
    original: Callable[[Any], Any] = rewriter.rewrite_ast
    known: dict[Any, CodeType] = {}

    def rewrite_ast(self: Any) -> Any:
        fn = self.fn
        bare = fn.__code__.replace(co_filename="", co_firstlineno=1, co_linetable=b"")
        key = (bare, repr(fn.__annotations__), repr(fn.__defaults__))
        if key not in known:
            lines = linecache.getlines(fn.__code__.co_filename)
            if fn.__closure__ or not lines:
                return original(self)
            known[key] = _rewritten(self, lines)
        for name, value in vars(interpreter).items():
            fn.__globals__.setdefault(name, value)
        made: dict[str, Any] = {}
        exec(known[key], fn.__globals__, made)
        return made[fn.__name__]

    rewriter.rewrite_ast = rewrite_ast


def _rewritten(rewriter: Any, lines: list[str]) -> CodeType:
    """The statement that defines a function as the interpreter runs it. lines: of its file."""
    code = rewriter.fn.__code__
    lines = _block(lines[code.co_firstlineno - 1 :])
    rewriter.filename, rewriter.def_lineno = code.co_filename, rewriter._find_def(lines)
    rewriter.def_file_lineno = code.co_firstlineno + rewriter.def_lineno - 1
    tree = rewriter._transform_ast(rewriter._prepare_source(lines))
    made: CodeType = compile(tree, code.co_filename, "exec")
    return made


def _block(lines: list[str]) -> list[str]:
    """The first of these lines, which are a function. `inspect` would read them token by token."""
    begun = lines[0].startswith("def ")
    for number, line in enumerate(lines[1:], 1):
        if lines[0][0].isspace() or '"""' in line or "'''" in line:
            return inspect.getblock(lines)
        if begun and line[0] not in " )#\n":
            return lines[:number]
        begun |= line.startswith("def ")
    return lines


def _patch_once_a_launch() -> None:
    """triton.language is patched again for each call of a function of its own, such as `tl.sum`,
    and what is to be patched is looked for among all its names each time."""
    if not hasattr(interpreter, "_patch_lang") or not hasattr(interpreter, "_LangPatchScope"):
        return
    patch, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    modules = (tl, tl.core)
    patched: list[Any] = []
    known: dict[tuple[Any, ...], list[tuple[Any, str, Any]]] = {}

    def patch_once(function: Any) -> Any:
        names = function.__globals__.values()
        wanted = [m for m in modules if m not in patched and any(m is value for value in names)]
        if not wanted:
            return interpreter._LangPatchScope()
        key = (*patched, None, *wanted)
        patched.extend(wanted)
        if key not in known:
            scope = patch(function)
            known[key] = [(held, name, vars(held)[name]) for held, name, _ in scope._changes]
            return scope
        scope = interpreter._LangPatchScope()
        for change in known[key]:
            if vars(change[0]).get(change[1]) is not change[2]:
                scope.set_attr(*change)
        return scope

    @functools.wraps(launch)
    def launched(self: Any, *given: Any, **named: Any) -> Any:
        patched.clear()
        return launch(self, *given, **named)

    interpreter._patch_lang = patch_once
    interpreter.GridExecutor.__call__ = launched


def _sum_in_steps() -> None:
    """A sum of floats, and a running one, adds in log2(n) steps, as a GPU's does; NumPy's adds one
    by one, and loses more."""
    scans = getattr(interpreter, "ScanOps", None)
    if scans is not None and hasattr(scans, "cumsum"):
        scans.cumsum = _running_sum(scans.cumsum)
    folds = getattr(interpreter, "ReduceOps", None)
    if folds is not None and hasattr(folds, "sum"):
        folds.sum = _halving_sum(folds.sum)


def _running_sum(in_order: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def cumsum(self: Any, given: Any) -> Any:
        found = given.handle.data
        if found.dtype.kind != "f":
            return in_order(self, given)
        found, step = np.moveaxis(found, self.axis, -1).copy(), 1
        while step < found.shape[-1]:
            found[..., step:] = found[..., step:] + found[..., :-step]
            step *= 2
        return [self.to_tensor(np.moveaxis(found, -1, self.axis), dtype=given.dtype)]

    return cumsum


def _halving_sum(in_order: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def summed(self: Any, given: Any) -> Any:
        found = given.handle.data
        if found.dtype.kind != "f" or self.axis is None:
            return in_order(self, given)
        found = np.moveaxis(found, self.axis, 0)
        while len(found) > 1:  # a power of two
            found = found[: len(found) // 2] + found[len(found) // 2 :]
        found = found + found.dtype.type(0)  # where NumPy's sums begin: none is -0.0
        kept = np.moveaxis(found, 0, self.axis) if self.keep_dims else found[0]
        return self.to_tensor(kept, given.dtype)

    return summed


def _overflow_in_silence() -> None:
    """A GPU says nothing of an infinity or a NaN, which kernels make in masked lanes, and of
    infinite inputs everywhere; NumPy warns of each."""
    launch = interpreter.GridExecutor.__call__

    @functools.wraps(launch)
    def launched(self: Any, *given: Any, **named: Any) -> Any:
        with np.errstate(all="ignore"):
            return launch(self, *given, **named)

    interpreter.GridExecutor.__call__ = launched


def _index_by_one_element() -> None:
    """Where a loop begins at the number of its program, Triton 3.6 makes an int of an array of one
    element, which NumPy 2.4 does not."""
    patch = getattr(interpreter, "_patch_lang_tensor", None)
    if patch is None or not hasattr(interpreter, "_LangPatchScope"):
        return

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched
