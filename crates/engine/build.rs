//! Compiles the C half of the JPEG decoder against the libjpeg-turbo that `turbojpeg-sys` built.

fn main() {
    println!("cargo:rerun-if-changed=src/decode/jpeg.c");
    let mut build = cc::Build::new();
    build.file("src/decode/jpeg.c").std("c11").opt_level(3).warnings(true).extra_warnings(true);
    for include in std::env::var("DEP_TURBOJPEG_INCLUDE").unwrap_or_default().split(',') {
        build.include(include);
    }
    build.compile("forebay_jpeg");
}
