package io.github.linattn.cli.points;

import tools.jackson.core.JsonParser;
import tools.jackson.core.JsonToken;
import tools.jackson.core.exc.StreamReadException;
import tools.jackson.core.util.JsonParserDelegate;

/**
 * Refuses whatever is no number where a number belongs, and the like of truth values: of itself
 * jackson-jr reads "x" as 0 and as false.
 */
final class StrictParser extends JsonParserDelegate {
  StrictParser(JsonParser parser) {
    super(parser);
  }

  @Override
  public int getValueAsInt() {
    require(currentToken() == JsonToken.VALUE_NUMBER_INT, "no whole number");
    return super.getValueAsInt();
  }

  @Override
  public long getValueAsLong() {
    require(currentToken() == JsonToken.VALUE_NUMBER_INT, "no whole number");
    return super.getValueAsLong();
  }

  @Override
  public double getValueAsDouble() {
    require(currentToken().isNumeric(), "no number");
    return super.getValueAsDouble();
  }

  @Override
  public boolean getValueAsBoolean() {
    require(currentToken().isBoolean(), "neither true nor false");
    return super.getValueAsBoolean();
  }

  private void require(boolean isOne, String otherwise) {
    if (!isOne) {
      throw new StreamReadException(this, streamReadContext().pathAsPointer() + " is " + otherwise);
    }
  }
}
