"""Plain Qwen3 text models, dense and mixture of experts, as a pipeline of one stage.

docs/public.md lists the public names; others may change in any version.
"""
