"""dspreg inside of other frameworks. Import the module of yours: each needs its framework, and no other.

dspreg.integrations.sklearn         DomainClassifier().fit(X, y, groups)
dspreg.integrations.lightning       Trainer(callbacks=[PenaltyCallback(…)])
dspreg.integrations.transformers    PenaltyTrainer(model, arguments, penalty={…})
dspreg.integrations.accelerate      backward(accelerator, penalty, closure)
dspreg.integrations.optimizer       PenaltyOptimizer(optimizer, penalty).step(closure)
"""
