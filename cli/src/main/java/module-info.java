/** The command {@code linattn}: demonstration, attention on files, checks, kernels on demand. */
module io.github.linattn.cli {
  requires static org.jspecify;
  requires info.picocli;
  requires java.desktop;
  requires jdk.management;
  requires io.github.linattn.bindings;
  requires io.github.linattn.kernels;
  requires io.github.linattn.runtime;
  requires me.tongfei.progressbar;
  requires tools.jackson.jr.ob;
  requires xchart;

  exports io.github.linattn.cli;

  opens io.github.linattn.cli to
      info.picocli;
  opens io.github.linattn.cli.points to
      tools.jackson.jr.ob;
}
