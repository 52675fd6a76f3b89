from tests.support.apis import real

__all__ = ["real"]
