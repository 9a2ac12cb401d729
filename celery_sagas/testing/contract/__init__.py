"""The contract of the stores: each port's in the module, or the folder of modules, of its name.

=================  ===========================================
Port               Contract
=================  ===========================================
``SagaStore``      ``sagas``
``Outbox``         ``outbox``
``Journal``        ``journal``
``Deliveries``     ``deliveries``
``DeadLetters``    ``dead_letters``
``AggregateStore`` ``aggregates``
``Buffers``        ``buffers``
``Instances``      ``instances``
``Audit``          ``audit``
``Switches``       ``switches``
``Backend``        ``backend`` and ``many``, of a whole backend
=================  ===========================================

``whole`` has all of them in one class, which a backend's test subclasses. ``interleaving`` proves that the operations of all of
them are atomic; ``fixtures`` are what a backend's test overrides.
"""
