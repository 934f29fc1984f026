"""Cases as nasty as we could make them: each a function, its inputs and how it is to be judged."""
