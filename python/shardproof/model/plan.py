"""Which rules of a plan of tensor parallelism a model has, and which parameters no rule names."""

import re


def matched(model) -> dict:
    """The rules with the number of modules and parameters that each fits, and what no rule cuts."""
    names = [name for name, _ in model.named_modules()] + [name for name, _ in model.named_parameters()]
    rules = {rule: {"style": style, "count": 0} for rule, style in (model.tp_plan or {}).items()}
    for name in names:
        general = re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", name)
        if general in rules:
            rules[general]["count"] += 1
    whole = sorted({re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", name) for name, parameter in model.named_parameters()
                    if not hasattr(parameter, "_local_tensor")})
    return {"rules": rules, "whole": whole}
