package io.github.linattn.cli.figures;

import static java.nio.charset.StandardCharsets.UTF_8;

import io.github.linattn.cli.figures.Curve.Mark;
import io.github.linattn.cli.points.Point;
import io.github.linattn.cli.points.Problem;
import io.github.linattn.cli.points.Run;
import io.github.linattn.cli.points.Samples;
import io.github.linattn.files.WholeFile;
import java.awt.BasicStroke;
import java.awt.Color;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.util.DoubleSummaryStatistics;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.function.ToDoubleFunction;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import javax.imageio.ImageIO;
import org.jspecify.annotations.Nullable;
import org.knowm.xchart.BitmapEncoder;
import org.knowm.xchart.BitmapEncoder.BitmapFormat;
import org.knowm.xchart.VectorGraphicsEncoder;
import org.knowm.xchart.VectorGraphicsEncoder.VectorGraphicsFormat;
import org.knowm.xchart.XYChart;
import org.knowm.xchart.XYChartBuilder;
import org.knowm.xchart.XYSeries;
import org.knowm.xchart.style.Styler.LegendPosition;
import org.knowm.xchart.style.lines.SeriesLines;
import org.knowm.xchart.style.markers.Marker;
import org.knowm.xchart.style.markers.SeriesMarkers;

/** Writes a figure as PNG and SVG, and its points as CSV. Out of memory is a cross at the top. */
public final class FigureFiles {
  /** A number with more than two decimals. */
  private static final Pattern DIGITS = Pattern.compile("(\\.\\d\\d)\\d+");

  /** As much of a legend as stands in a line, which would else be cut off. */
  private static final Pattern LEGEND_LINE = Pattern.compile("(.{1,42})(?: |$)");

  private static final int WIDTH = 1200;
  private static final int HEIGHT = 700;

  /** The topmost cross over the largest value. */
  private static final double ABOVE = 3;

  /** Each row of crosses over the next. */
  private static final double STEP = 1.12;

  /** Over a smaller range there may be no more than one power of ten. */
  private static final double LEAST_DECADES = 100;

  /** Colours that people with any kind of sight tell apart, by Okabe and Ito. */
  private static final Color[] COLOURS = {
    new Color(0x0072B2), new Color(0xD55E00), new Color(0x009E73), new Color(0xCC79A7),
    new Color(0xE69F00), new Color(0x56B4E9), new Color(0x555555), new Color(0x000000)
  };

  private static final Marker[] MARKERS = {
    SeriesMarkers.CIRCLE, SeriesMarkers.SQUARE, SeriesMarkers.TRIANGLE_UP, SeriesMarkers.DIAMOND
  };

  private FigureFiles() {}

  /** Writes the three files into a folder that is there. */
  public static void write(Figure figure, Path folder) throws IOException {
    XYChart chart = chart(figure);
    ImageIO.setUseCache(false); // a temporary file, whose folder may be missing
    var bitmap = new ByteArrayOutputStream();
    BitmapEncoder.saveBitmap(chart, bitmap, BitmapFormat.PNG);
    var drawing = new ByteArrayOutputStream();
    VectorGraphicsEncoder.saveVectorGraphic(chart, drawing, VectorGraphicsFormat.SVG);
    Path png = folder.resolve(figure.name() + ".png");
    WholeFile.write(
        png, channel -> WholeFile.append(channel, ByteBuffer.wrap(bitmap.toByteArray())));
    WholeFile.write(folder.resolve(figure.name() + ".svg"), shortened(drawing.toString(UTF_8)));
    WholeFile.write(folder.resolve(figure.name() + ".csv"), csv(figure));
  }

  /** With coordinates to a hundredth of a pixel, which leaves three quarters of the bytes. */
  private static String shortened(String drawing) {
    return DIGITS.matcher(drawing).replaceAll("$1");
  }

  private static XYChart chart(Figure figure) {
    XYChart chart =
        new XYChartBuilder()
            .width(WIDTH)
            .height(HEIGHT)
            .title(figure.title())
            .xAxisTitle(figure.xTitle())
            .yAxisTitle(figure.yTitle() + (hasCrosses(figure) ? " (x: out of memory)" : ""))
            .build();
    chart
        .getStyler()
        .setXAxisLogarithmic(true)
        .setYAxisLogarithmic(figure.logarithmic())
        .setXAxisLogarithmicDecadeOnly(hasDecades(figure, Mark::x))
        .setYAxisLogarithmicDecadeOnly(hasDecades(figure, Mark::y))
        .setLegendPosition(LegendPosition.OutsideE)
        .setChartBackgroundColor(Color.WHITE)
        .setPlotBorderVisible(false)
        .setLocale(Locale.ROOT)
        .setMarkerSize(8);
    if (!figure.logarithmic()) {
      chart.getStyler().setYAxisMin(0.0);
    }
    double top =
        figure.curves().stream()
            .flatMap(curve -> curve.shown().stream())
            .mapToDouble(Mark::y)
            .max()
            .orElse(1);
    int crosses = 0;
    for (int i = 0; i < figure.curves().size(); i++) {
      Curve curve = figure.curves().get(i);
      Color colour = COLOURS[i % COLOURS.length];
      List<Mark> lost = curve.marks().stream().filter(Mark::isOutOfMemory).toList();
      add(chart, curve, colour, MARKERS[i / COLOURS.length % MARKERS.length]);
      if (!lost.isEmpty()) {
        double down = Math.pow(STEP, crosses++);
        cross(chart, curve, lost, colour, figure.logarithmic() ? top * ABOVE / down : top / down);
      }
    }
    return chart;
  }

  /** Whether labels at powers of ten are enough. */
  private static boolean hasDecades(Figure figure, ToDoubleFunction<Mark> value) {
    DoubleSummaryStatistics shown =
        figure.curves().stream()
            .flatMap(curve -> curve.shown().stream())
            .mapToDouble(value)
            .summaryStatistics();
    return shown.getMax() / shown.getMin() >= LEAST_DECADES;
  }

  private static boolean hasCrosses(Figure figure) {
    return figure.curves().stream()
        .flatMap(curve -> curve.marks().stream())
        .anyMatch(Mark::isOutOfMemory);
  }

  private static void add(XYChart chart, Curve curve, Color colour, Marker marker) {
    List<Mark> shown = curve.shown();
    if (shown.isEmpty()) {
      return;
    }
    XYSeries series =
        chart.addSeries(
            curve.name(),
            shown.stream().mapToDouble(Mark::x).toArray(),
            shown.stream().mapToDouble(Mark::y).toArray());
    series.setLabel(LEGEND_LINE.matcher(curve.name()).replaceAll("$1\n").stripTrailing());
    boolean line = curve.style() == Curve.Style.LINE;
    series.setMarker(line ? SeriesMarkers.NONE : marker).setMarkerColor(colour);
    series
        .setLineColor(colour)
        .setLineStyle(
            switch (curve.style()) {
              case JOINED, LINE -> new BasicStroke(2);
              case DASHED -> SeriesLines.DASH_DASH;
              case DOTS -> SeriesLines.NONE;
            });
  }

  private static void cross(
      XYChart chart, Curve curve, List<Mark> lost, Color colour, double height) {
    XYSeries series =
        chart.addSeries(
            curve.name() + ": out of memory",
            lost.stream().mapToDouble(Mark::x).toArray(),
            lost.stream().mapToDouble(mark -> height).toArray());
    series.setMarker(SeriesMarkers.CROSS).setMarkerColor(colour);
    series.setLineStyle(SeriesLines.NONE).setShowInLegend(curve.shown().isEmpty());
  }

  private static final String COLUMNS =
      "curve,x,y,status,why,sweep,method,pass,batch,heads,kv_heads,tokens,key_dim,value_dim,context,"
          + "dtype,mode,causal,normalize,data,median_ms,least_ms,most_ms,samples,calls,graph,"
          + "first_ms,bytes,moved_bytes,memory_bytes,started,machine,driver,clocks,commit,versions";

  private static String csv(Figure figure) {
    var lines = new StringBuilder(COLUMNS).append('\n');
    for (Curve curve : figure.curves()) {
      for (Mark mark : curve.marks()) {
        lines.append(line(curve, mark)).append('\n');
      }
    }
    return lines.toString();
  }

  private static String line(Curve curve, Mark mark) {
    Point point = mark.measured().point();
    Problem problem = point.problem();
    Samples samples = point.samples();
    Run run = mark.measured().run();
    String versions =
        run.versions().entrySet().stream()
            .sorted(Map.Entry.comparingByKey())
            .map(entry -> entry.getKey() + " " + entry.getValue())
            .collect(Collectors.joining("; "));
    return Stream.of(
            curve.name(),
            mark.x(),
            Double.isFinite(mark.y()) ? mark.y() : null,
            point.status(),
            point.why(),
            problem.sweep(),
            problem.method(),
            problem.pass(),
            problem.batch(),
            problem.heads(),
            problem.keyValueHeads(),
            problem.tokens(),
            problem.keyDim(),
            problem.valueDim(),
            problem.context(),
            problem.dtype(),
            problem.mode(),
            problem.causal(),
            problem.normalize(),
            problem.data(),
            samples == null ? null : samples.median(),
            samples == null ? null : samples.least(),
            samples == null ? null : samples.most(),
            samples == null ? null : samples.millis().size(),
            samples == null ? null : samples.calls(),
            samples == null ? null : samples.graph(),
            samples == null ? null : samples.firstMillis(),
            point.bytes(),
            point.movement() == null ? null : point.movement().bytes(),
            point.memoryBytes(),
            run.started(),
            run.machine(),
            run.driver(),
            run.clocks(),
            run.commit(),
            versions)
        .map(FigureFiles::cell)
        .collect(Collectors.joining(","));
  }

  /** Quoted where RFC 4180 asks for it; empty for null. */
  private static String cell(@Nullable Object value) {
    String text = value == null ? "" : value.toString();
    return text.matches("[^\",\r\n]*") ? text : '"' + text.replace("\"", "\"\"") + '"';
  }
}
