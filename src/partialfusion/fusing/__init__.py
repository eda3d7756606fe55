"""From models and options to a result: matching, budgets, shares, and the pipeline that ties them together."""
