"""A stage behind the voice and a classifier, for the pipelines of other families."""
