"""The report of a model's plans: `collect` gathers what is shown, `page` writes it as HTML."""
