"""Reverts an upstream fix in an installed package: one piece of one function's text is replaced, in memory alone."""

import __future__
import ast
import importlib
import inspect
import textwrap


def plant(where, fixed, broken):
    """where: "module:function" or "module:Class.function". Whoever has imported the function has the bug, too."""
    module, _, path = where.partition(":")
    function = importlib.import_module(module)
    for name in path.split("."):
        function = getattr(function, name)
    function = inspect.unwrap(function)
    source = textwrap.dedent(inspect.getsource(function))
    if source.count(fixed) != 1:
        raise AssertionError(f"{where} holds {fixed!r} {source.count(fixed)} times; the installed version is another one")
    tree = ast.parse(source.replace(fixed, broken))
    tree.body[0].decorator_list = []
    namespace = dict(function.__globals__)
    code = compile(tree, f"<{where} without its fix>", "exec", __future__.annotations.compiler_flag)  # whose types are not imported
    exec(code, namespace)
    function.__code__ = namespace[function.__name__].__code__
