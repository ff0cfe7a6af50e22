"""Plain Qwen3 text models, dense and mixture of experts, as a pipeline of one stage."""
